//! Finds the credential of a command in an option, a variable or the stored login of the human user, and opens the API with it.

use super::{
    args::{HUMAN_TOKEN_HINT, HumanArgs, HumanTokenArg, ManagerArgs, OwnedServiceArgs, ServerArgs, ServiceKeyArg},
    context::Context,
    error::CliError,
    stored_login::stored_token,
};
use countersign_client::api::{HumanApi, ServiceApi};
use secrecy::SecretString;

impl HumanArgs {
    /// The API, with the token of the human user; an error if no token is set or stored.
    pub async fn api(&self, context: &Context) -> Result<HumanApi, CliError> {
        let api = context.api(&self.server)?;
        Ok(HumanApi { api, token: self.token.credential(context, &self.server).await? })
    }
}

impl OwnedServiceArgs {
    /// The API for the service, with the token of the human user.
    pub async fn service_api(&self, context: &Context) -> Result<ServiceApi, CliError> {
        let HumanArgs { server, token } = &self.human;
        let api = context.api(server)?;
        let id = context.service(&self.service)?;
        Ok(ServiceApi { api, id, credential: token.credential(context, server).await? })
    }
}

impl HumanTokenArg {
    /// The token that an option or variable sets, or else the token of the stored login; fails if there is no token.
    pub async fn credential(&self, context: &Context, server: &ServerArgs) -> Result<SecretString, CliError> {
        let token = self.available(context, server).await?;
        token.ok_or_else(|| CliError::missing("the token of a human user", HUMAN_TOKEN_HINT))
    }

    /// Like [`Self::credential`], but `None` if no token is set or stored.
    pub async fn available(&self, context: &Context, server: &ServerArgs) -> Result<Option<SecretString>, CliError> {
        match self.explicit()? {
            Some(token) => Ok(Some(token.clone())),
            None => stored_token(context, server).await,
        }
    }
}

impl ServiceKeyArg {
    /// The API key of the service, or else the token of the human user; fails if neither is set or stored.
    pub async fn or_human(
        &self,
        context: &Context,
        server: &ServerArgs,
        human: &HumanTokenArg,
    ) -> Result<SecretString, CliError> {
        if let Some(key) = self.optional()? {
            return Ok(key.clone());
        }
        let next = "set COUNTERSIGN_SERVICE_KEY (`countersign key create --scope full` creates one), or log in as a human \
                    user: countersign login, or set COUNTERSIGN_HUMAN_TOKEN";
        let token = human.available(context, server).await?;
        token.ok_or_else(|| CliError::missing("an API key or the token of a human user", next))
    }
}

impl ManagerArgs {
    /// The API for the service, with its API key or else the token of the human user.
    pub async fn service_api(&self, context: &Context) -> Result<ServiceApi, CliError> {
        let api = context.api(&self.server)?;
        let id = context.service(&self.service)?;
        Ok(ServiceApi { api, id, credential: self.credential(context).await? })
    }

    /// The API key of the service, or else the token of the human user.
    pub async fn credential(&self, context: &Context) -> Result<SecretString, CliError> {
        self.key.or_human(context, &self.server, &self.human).await
    }
}
