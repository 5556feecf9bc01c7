//! The credential of a command, and the API that it is for: an option or a variable, or else the stored login of the human user.

use super::{
    args::{HUMAN_TOKEN, HumanArgs, HumanTokenArg, ManagerArgs, ServerArgs, ServiceArg, ServiceKeyArg},
    context::Context,
    error::CliError,
    stored_login::stored_token,
};
use countersign_client::Api;
use secrecy::SecretString;

/// The API, and the token of a human user for it.
pub struct HumanAccess {
    pub api: Api,
    pub token: SecretString,
}

/// The API, a service, and the credential that manages the service.
pub struct ServiceAccess {
    pub api: Api,
    pub service: String,
    pub credential: SecretString,
}

impl HumanArgs {
    /// The API and the token of the human user; an error if there is no token.
    pub async fn access(&self, context: &Context) -> Result<HumanAccess, CliError> {
        let api = context.api(&self.server)?;
        Ok(HumanAccess { api, token: self.token.credential(context, &self.server).await? })
    }

    /// The API and the token of the human user, for requests about a service.
    pub async fn service_access(&self, context: &Context, service: &ServiceArg) -> Result<ServiceAccess, CliError> {
        let api = context.api(&self.server)?;
        let service = context.service(service)?;
        Ok(ServiceAccess { api, service, credential: self.token.credential(context, &self.server).await? })
    }
}

impl HumanTokenArg {
    /// The token that is set, or else that of the stored login; an error if there is neither.
    pub async fn credential(&self, context: &Context, server: &ServerArgs) -> Result<SecretString, CliError> {
        let token = self.available(context, server).await?;
        token.ok_or_else(|| CliError::missing("the token of a human user", HUMAN_TOKEN))
    }

    /// The token that is set, or else that of the stored login, if there is one.
    pub async fn available(&self, context: &Context, server: &ServerArgs) -> Result<Option<SecretString>, CliError> {
        match self.explicit()? {
            Some(token) => Ok(Some(token.clone())),
            None => stored_token(context, server).await,
        }
    }
}

impl ServiceKeyArg {
    /// The API key of the service, or else the token of the human user; an error if there is neither.
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
    /// The API, the service, and its API key or else the token of the human user.
    pub async fn access(&self, context: &Context) -> Result<ServiceAccess, CliError> {
        let api = context.api(&self.server)?;
        let service = context.service(&self.service)?;
        Ok(ServiceAccess { api, service, credential: self.credential(context).await? })
    }

    /// The API key of the service, or else the token of the human user.
    pub async fn credential(&self, context: &Context) -> Result<SecretString, CliError> {
        self.key.or_human(context, &self.server, &self.human).await
    }
}
