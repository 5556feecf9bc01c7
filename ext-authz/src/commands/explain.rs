//! The command `explain` asks the running sidecar how it decides about a request, or decides itself with the copy on disk.

use super::{CommandExit, Failure, Output, RequestArguments, parse_key_value, token};
use crate::{
    app::{OfflineAuthorizer, authorizer_from_copies},
    check::{DescribedRequest, Explanation},
    config,
};
use clap::Args;
use countersign_process::{output::write_stderr_line, settings::environment, shutdown};
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// How long the sidecar may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// The admin port of the running sidecar: a loopback address and a port.
    #[arg(long, default_value = "127.0.0.1:9092", value_parser = parse_loopback)]
    admin: String,
    /// Asks no running sidecar, but decides with the copy on disk, like a sidecar that starts now and does not reach the control
    /// plane. Needs the settings of the sidecar: `--config`, `--set` and the environment.
    #[arg(long, conflicts_with = "admin")]
    copy: bool,
    /// Path of the TOML file with the settings of the sidecar, for `--copy`.
    #[arg(long, value_name = "FILE", requires = "copy")]
    config: Option<PathBuf>,
    /// A setting of the sidecar, for `--copy`. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_key_value, requires = "copy")]
    set: Vec<(String, String)>,
    /// The request.
    #[command(flatten)]
    request: RequestArguments,
    /// A context extension of the route, such as `require_roles=reader`. Can be repeated.
    #[arg(long = "context-extension", value_name = "KEY=VALUE", value_parser = parse_key_value)]
    context_extensions: Vec<(String, String)>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Accepts only a loopback address, because the token is sent to it in plain text.
fn parse_loopback(text: &str) -> Result<String, &'static str> {
    let host = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map(|(host, _)| host);
    let is_loopback = |host: &str| {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    };
    host.filter(|host| is_loopback(host))
        .map(|_| text.to_owned())
        .ok_or("must be a loopback address and a port, such as 127.0.0.1:9092")
}

pub(super) fn run(arguments: ExplainArguments) -> Result<Output, Failure> {
    let token = token::read(None)?;
    let ExplainArguments { admin, copy, config, set, request, context_extensions, json } = arguments;
    let request = request.with(context_extensions, token);
    let explanation = if copy { explain_from_copies(request, config, set)? } else { ask(&admin, &request)? };
    let exit = if explanation.decision == "allow" { CommandExit::Succeeded } else { CommandExit::Denied };
    let text = if json {
        serde_json::to_string_pretty(&explanation).map_err(|error| error.to_string())? + "\n"
    } else {
        describe(&explanation)
    };
    Ok(Output { text, exit })
}

/// Decides with the copies on disk of the sidecar that has these settings.
fn explain_from_copies(
    request: DescribedRequest,
    file: Option<PathBuf>,
    flags: Vec<(String, String)>,
) -> Result<Explanation, String> {
    let settings = config::read(file, environment(), flags).map_err(|error| error.to_string())?;
    let OfflineAuthorizer { authorizer, unusable } = authorizer_from_copies(settings)?;
    unusable.into_iter().for_each(write_stderr_line);
    authorizer.explain_described(request).ok_or_else(|| "the request cannot be explained".to_owned())
}

/// Asks the sidecar with this admin port.
fn ask(admin: &str, request: &DescribedRequest) -> Result<Explanation, Failure> {
    let body = serde_json::to_string(request).map_err(|error| error.to_string())?;
    let answer = shutdown::block_on(send(admin, body)).map_err(|error| error.to_string())??;
    Ok(serde_json::from_str(&answer).map_err(|_| format!("{admin} is not the admin port of a sidecar"))?)
}

async fn send(admin: &str, body: String) -> Result<String, Failure> {
    // The cryptographic provider of rustls can be installed once per process. Later attempts fail, which is harmless.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let unreachable = |error: &reqwest::Error| Failure {
        errors: format!("{admin}: {error}: is the sidecar running, and is this its admin port?"),
        exit: CommandExit::Unreachable,
    };
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().map_err(|error| unreachable(&error))?;
    let request = client.post(format!("http://{admin}/explain")).header("content-type", "application/json").body(body);
    let response = request.send().await.map_err(|error| unreachable(&error))?;
    let status = response.status();
    let text = response.text().await.map_err(|error| unreachable(&error))?;
    if status.is_success() {
        Ok(text)
    } else {
        Err(format!("{admin} answered {status}: {}", text.trim().escape_debug()).into())
    }
}

fn describe(explanation: &Explanation) -> String {
    let Explanation { decision, reason, dry_run_reason, questions, .. } = explanation;
    let dry_run = dry_run_reason.as_ref().map(|reason| format!(" (would be denied: {reason})")).unwrap_or_default();
    let answer = |it: &crate::check::ExplainedQuestion| {
        format!("{:<12} {:<10} {}", it.question, it.answer, it.detail).trim_end().to_owned() + "\n"
    };
    questions.iter().map(answer).collect::<String>() + &format!("{:<12} {decision:<10} {reason}{dry_run}\n", "verdict")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_to_loopback_only() {
        for address in ["127.0.0.1:9092", "localhost:1", "[::1]:9092", "127.8.8.8:1"] {
            assert_eq!(parse_loopback(address).as_deref(), Ok(address));
        }
        for address in
            ["0.0.0.0:9092", "10.0.0.1:9092", "localhost", "localhost:x", "localhost.example.com:1", "::1", ""]
        {
            assert!(parse_loopback(address).is_err(), "{address}");
        }
    }
}
