//! `countersign agent keygen` and `countersign agent register`.

use crate::cli::{
    context::{absolute_path, read_file},
    login::SignerArgs,
    prelude::{CliError, CommandOutput, Context, HumanTokenArg, ServerArgs, quoted},
};
use clap::{Args, ValueHint};
use countersign_client::{KeyError, PrivateKey, Profile, SignerCommand, api::RegisteredAgent};
use countersign_identity::{P256PublicKey, PublicKeyError};
use serde_json::json;
use std::{
    io,
    path::{Path, PathBuf},
};

pub const HELP: &str = "\
The key, the name and the e-mail address (or the human user who is logged in) identify the agent. Registering them \
again returns the same agent. If this agent is suspended or revoked, the command fails.

The profile saves the control plane, the agent and its key, so that later commands need no options.

For a key in a TPM or HSM pass --signer COMMAND and --public-key FILE. COMMAND reads a text from standard input and prints \
its signature, as `openssl dgst -sha256 -sign KEY` does. It signs once before the registration, to show that it has the key.

Examples:
  $ countersign agent register --server https://HOST:8443 --email YOU@EXAMPLE.ORG --name NAME
  $ countersign agent register --email YOU@EXAMPLE.ORG --name NAME --signer ./hsm-sign --public-key hsm.pub

Next: the service assigns a role (countersign role create --help), then countersign agent call URL";

#[derive(Args)]
pub struct RegisterArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    signer: SignerArgs,
    /// The file with the public key that belongs to the private key of --signer
    #[arg(long, value_name = "FILE", requires = "signer", value_hint = ValueHint::FilePath)]
    public_key: Option<PathBuf>,
    /// The e-mail address of the person who registers the agent
    #[arg(long, value_hint = ValueHint::EmailAddress)]
    email: String,
    /// The display name of the agent
    #[arg(long)]
    name: String,
    #[command(flatten)]
    human: HumanTokenArg,
}

/// Creates a key file, and saves its path in the profile if the profile has no agent yet.
pub fn keygen(context: &Context, file: Option<PathBuf>) -> Result<CommandOutput, CliError> {
    // Without --key, the key file is in the folder of the profile, so this folder must be writable, too.
    if context.profile.agent.is_none() || file.is_none() {
        context.check_writable()?;
    }
    let path = file.map_or_else(|| context.profiles.path(&context.name, "key"), |path| Ok(absolute_path(path)))?;
    let key = PrivateKey::generate();
    key.write(&path).map_err(|error| match error {
        KeyError::File { error, .. } if error.kind() == io::ErrorKind::NotFound => {
            CliError::file("--key", &path, "the folder does not exist")
        }
        error => error.into(),
    })?;
    let public_key = key.public_pem()?;
    let json = json!({ "key": path, "publicKey": public_key });
    let shown = path.display().to_string();
    let next = "\nNext: countersign agent register --email YOU@EXAMPLE.ORG --name NAME";
    let mut saved = Ok(());
    let mut note = format!("The key is in {shown}.{next}");
    if let Some(agent) = &context.profile.agent {
        let name = &context.name;
        note = format!("The profile {name} still uses {agent} and its key.{next} --key {}", quoted(&shown));
    } else {
        saved = context.update_profile(|profile| (profile.key, profile.signer) = (Some(path.clone()), None));
    }
    Ok(CommandOutput::new(public_key, json).with_note(note).with_profile_result(saved))
}

/// The public key to register, and the file or the signer command that has its private key.
struct RegistrationKey {
    public_key: P256PublicKey,
    file: Option<PathBuf>,
    signer: Option<String>,
}

impl RegistrationKey {
    /// Finds the key that the arguments name, or else the key of the profile. Checks that an external signer has the private key.
    async fn find(context: &Context, signer: &SignerArgs, public_key: Option<&Path>) -> Result<Self, CliError> {
        let Some(command) = &signer.signer else {
            let file = signer.path(context)?;
            let pem = context.private_key(&file)?.public_pem()?;
            let public_key = P256PublicKey::from_pem(&pem).map_err(|_| KeyError::Encoding)?;
            return Ok(Self { public_key, file: Some(absolute_path(file)), signer: None });
        };
        let file = public_key
            .ok_or_else(|| CliError::missing("the public key of the signer", "set --public-key FILE, in PEM"))?;
        let public_key = read_public_key(file)?;
        let signer = SignerCommand::new(command);
        if !signer.holds(public_key).await? {
            let program = signer.program();
            let file = file.display();
            let text = format!("the signer `{program}` does not sign with the key in --public-key {file}");
            let next = "pass the public key that belongs to the signer; nothing was registered";
            return Err(CliError::failed(text).with_next(next));
        }
        Ok(Self { public_key, file: None, signer: Some(command.clone()) })
    }
}

pub async fn register(context: &Context, args: RegisterArgs) -> Result<CommandOutput, CliError> {
    let RegisterArgs { server, signer, public_key, email, name, human } = args;
    let api = context.api(&server)?;
    let human = human.available(context, &server).await?;
    context.check_writable()?;
    let key = RegistrationKey::find(context, &signer, public_key.as_deref()).await?;
    let pem = key.public_key.to_pem().map_err(|_| KeyError::Encoding)?;
    let agent = api.register_pem(&pem, &email, &name, human.as_ref()).await?;
    refuse_unless_active(&agent)?;
    let url = context.url(&server)?;
    let ca = context.authority(&server).map(absolute_path);
    let previous = context.profile.agent.clone().filter(|previous| *previous != agent.agent_id);
    let saved = context.update_profile(|profile| {
        *profile = Profile {
            url: Some(url),
            ca,
            agent: Some(agent.agent_id.clone()),
            key: key.file,
            signer: key.signer,
            public_key_hash: Some(agent.public_key_hash.clone()),
            audience: None,
            oauth: None,
            service: profile.service.take(),
            login: profile.login.take(),
        };
    });
    let replaced = previous.map(|previous| format!(" instead of {previous}; --profile keeps both")).unwrap_or_default();
    let note = format!(
        "The profile {} uses this agent now{replaced}.\nNext: the service assigns a role (countersign role create --help), \
         then countersign agent call URL",
        context.name
    );
    let note =
        if saved.is_ok() { note } else { "Pass the id, --server, and --key or --signer to later commands.".into() };
    Ok(CommandOutput::new(agent.agent_id.clone(), json!(agent)).with_note(note).with_profile_result(saved))
}

/// Refuses a suspended or revoked agent: registering the same key, e-mail address and name again returns the existing agent, whatever its
/// status is.
fn refuse_unless_active(agent: &RegisteredAgent) -> Result<(), CliError> {
    let RegisteredAgent { agent_id, status, .. } = agent;
    if !["suspended", "revoked"].contains(&status.as_str()) {
        return Ok(());
    }
    let text = format!("the agent {agent_id} has this key, name, and e-mail address or owner, and is {status}");
    Err(CliError::denied(text, format!("agent_{status}")))
}

/// Reads a public key. Parses it here, because the file may contain a private key, which must never be sent.
fn read_public_key(file: &Path) -> Result<P256PublicKey, CliError> {
    let text = read_file("--public-key", file)?;
    let file = file.display().to_string();
    P256PublicKey::from_pem(&String::from_utf8_lossy(&text)).map_err(|error| match error {
        PublicKeyError::Private => {
            CliError::usage(format!("--public-key {file}: this is a private key; it was not sent"))
                .with_next(format!("`openssl pkey -in {} -pubout` prints the public key", quoted(&file)))
        }
        PublicKeyError::TooLong | PublicKeyError::NotOnePublicKey | PublicKeyError::NotP256 => {
            CliError::usage(format!("--public-key {file}: {error}"))
        }
    })
}
