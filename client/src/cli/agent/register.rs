//! How an agent begins: a key is made, its public half registered.

use crate::cli::{
    Failure, Said,
    context::{Context, Server, absolute, human_token as checked, missing, private_key, read},
    login::KeyHolder,
    said::typed,
};
use clap::Args;
use countersign_client::{KeyError, PrivateKey, Profile, SignerCommand, api::Registered};
use countersign_identity::{P256PublicKey, PublicKeyError};
use secrecy::SecretString;
use serde_json::json;
use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Args)]
pub struct Register {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    holder: KeyHolder,
    /// The public half, if a command signs
    #[arg(long, value_name = "FILE", requires = "signer")]
    public_key: Option<PathBuf>,
    /// Where the registrant can be written to
    #[arg(long)]
    email: String,
    /// What people call the agent
    #[arg(long)]
    name: String,
    /// A person's token, where registration is not public; better in the environment
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    human_token: Option<SecretString>,
}

/// Makes a key.
pub fn keygen(context: &Context, given: Option<PathBuf>) -> Result<Said, Failure> {
    let remembers = context.profile.agent.is_none();
    if remembers || given.is_none() {
        context.check_writable()?;
    }
    let path = given.map_or_else(|| context.profiles.path(&context.name, "key"), |path| Ok(absolute(path)))?;
    let made = PrivateKey::generate();
    made.write(&path).map_err(|error| match error {
        KeyError::File { error, .. } if error.kind() == io::ErrorKind::NotFound => {
            Failure::file("--key", &path, "the folder for it does not exist")
        }
        error => error.into(),
    })?;
    let public = made.public_pem()?;
    let value = json!({ "key": path, "publicKey": public });
    let shown = path.display().to_string();
    let next = "\nNext: countersign agent register --email YOU@EXAMPLE.ORG --name NAME";
    let (mut saved, mut note) = (Ok(()), format!("The key is in {shown}.{next}"));
    if let Some(agent) = &context.profile.agent {
        let name = &context.name;
        note = format!("Profile {name} stays with {agent}.{next} --key {}", typed(&shown));
    } else {
        let (key, signer) = (Some(path.clone()), None);
        saved = context.remember(|profile| (profile.key, profile.signer) = (key, signer));
    }
    Ok(Said::new(public, value).noting(note).remembered(saved))
}

/// The key of an agent to be: its public half, and who holds the other.
struct Key {
    public: P256PublicKey,
    file: Option<PathBuf>,
    signer: Option<String>,
}

impl Key {
    /// As the command line and the profile say. A signer has shown that it holds the private half.
    async fn find(context: &Context, holder: &KeyHolder, public_key: Option<&Path>) -> Result<Self, Failure> {
        let Some(command) = &holder.signer else {
            let file = holder.path(context)?;
            let pem = private_key(&file)?.public_pem()?;
            let public = P256PublicKey::from_pem(&pem).map_err(|_| KeyError::Encoding)?;
            return Ok(Self { public, file: Some(absolute(file)), signer: None });
        };
        let half = public_key.ok_or_else(|| missing("which key the signer holds", "--public-key FILE, in PEM"))?;
        let public = public_half(half)?;
        let signer = SignerCommand::new(command);
        if !signer.holds(public).await? {
            let (program, half) = (signer.program(), half.display());
            return Err(Failure::Failed(format!(
                "the signer `{program}` signs with another key than that of --public-key {half}\n\
                 Next: give the public half of the key that it signs with; nothing was registered"
            )));
        }
        Ok(Self { public, file: None, signer: Some(command.clone()) })
    }
}

/// Registers the public half of a key.
pub async fn register(context: &Context, asked: Register) -> Result<Said, Failure> {
    let Register { server, holder, public_key, email, name, human_token } = asked;
    let api = context.api(&server)?;
    let human = human_token.as_ref().map(checked).transpose()?;
    context.check_writable()?;
    let key = Key::find(context, &holder, public_key.as_deref()).await?;
    let pem = key.public.to_pem().map_err(|_| KeyError::Encoding)?;
    let made = api.register_pem(&pem, &email, &name, human).await?;
    refuse_unless_active(&made)?;
    let (url, ca) = (context.url(&server)?, context.authority(&server).map(absolute));
    let before = context.profile.agent.clone().filter(|before| *before != made.agent_id);
    let saved = context.remember(|profile| {
        *profile = Profile {
            url: Some(url),
            ca,
            agent: Some(made.agent_id.clone()),
            key: key.file,
            signer: key.signer,
            public_key_hash: Some(made.public_key_hash.clone()),
            audience: None,
            service: profile.service.take(),
        };
    });
    let replaced = before.map(|before| format!(" in place of {before}; --profile keeps several")).unwrap_or_default();
    let note = format!(
        "Profile {} holds this agent{replaced}.\nNext: a role of the service (countersign role create --help), then countersign agent call URL",
        context.name
    );
    let note = if saved.is_ok() { note } else { "Name it with --agent, --url, and --key or --signer.".into() };
    Ok(Said::new(made.agent_id.clone(), json!(made)).noting(note).remembered(saved))
}

/// The same key, e-mail and name lead to the same agent, whatever became of it.
fn refuse_unless_active(made: &Registered) -> Result<(), Failure> {
    let (agent, status) = (&made.agent_id, made.status.as_str());
    let known = format!("{agent} has this key, this e-mail or owner, and this name already");
    match status {
        "suspended" => Err(Failure::denied(format!("{known}, and it is suspended"), "agent_suspended")),
        "revoked" => Err(Failure::denied(format!("{known}, and it is revoked, which is for good"), "agent_revoked")),
        _ => Ok(()),
    }
}

/// Reads the public half of a key that something else holds, here: the private half must not even be sent.
fn public_half(file: &Path) -> Result<P256PublicKey, Failure> {
    let text = read("--public-key", file)?;
    P256PublicKey::from_pem(&String::from_utf8_lossy(&text)).map_err(|error| no_public_half(file, error))
}

fn no_public_half(file: &Path, error: PublicKeyError) -> Failure {
    let file = file.display();
    Failure::Usage(match error {
        PublicKeyError::Private => format!(
            "--public-key {file}: this is a private key; it was not sent\n\
             Next: `openssl pkey -in {} -pubout` prints its public half",
            typed(&file.to_string())
        ),
        PublicKeyError::TooLong | PublicKeyError::NotOnePublicKey | PublicKeyError::NotP256 => {
            format!("--public-key {file}: {error}")
        }
    })
}
