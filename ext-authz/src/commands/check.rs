//! The command `check` sends one check to a running sidecar, as Envoy does, and prints the answer that Envoy would get.

use super::{CommandExit, Failure, Output, RequestArguments, parse_key_value, token};
use clap::Args;
use countersign_process::{output::error_chain, shutdown};
use countersign_proto::envoy::service::auth::v3::{
    CheckRequest, CheckResponse, authorization_client::AuthorizationClient, check_response::HttpResponse,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// How long the sidecar may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The answer to a request that is allowed, as `--expect` names it.
const ALLOWED: &str = "allowed";

/// The arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Where the sidecar answers checks: http://HOST:PORT, https://HOST:PORT if it serves TLS, or unix:PATH for a Unix socket.
    #[arg(long, default_value = "http://127.0.0.1:9191", value_parser = parse_address)]
    address: Endpoint,
    /// TLS of the connection.
    #[command(flatten)]
    tls: TlsArguments,
    /// A file with the token, instead of standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The request.
    #[command(flatten)]
    request: RequestArguments,
    /// A context extension of the route, such as `service_id=svc_…`. Can be repeated.
    #[arg(long = "context-extension", value_name = "KEY=VALUE", value_parser = parse_key_value)]
    context_extensions: Vec<(String, String)>,
    /// The expected answer: `allowed`, or the reason of a denial, such as `no_role`. With any other answer, the command fails.
    #[arg(long, value_name = "ANSWER", default_value = ALLOWED)]
    expect: String,
}

/// TLS of the connection to the sidecar.
#[derive(Debug, Args)]
struct TlsArguments {
    /// For https://: a PEM file with the authorities that the sidecar's certificate must come from, instead of those of the system.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For https://: a PEM file with a certificate for this client, if the sidecar requires one (`tls.client_ca`).
    #[arg(long, value_name = "FILE", requires = "private_key")]
    certificate: Option<PathBuf>,
    /// A PEM file with the private key of `--certificate`.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    private_key: Option<PathBuf>,
}

impl TlsArguments {
    /// Adds TLS to an endpoint that uses it.
    fn apply_to(&self, endpoint: Endpoint) -> Result<Endpoint, String> {
        let Self { ca, certificate, private_key } = self;
        if endpoint.uri().scheme_str() != Some("https") {
            let has_file = ca.is_some() || certificate.is_some();
            return if has_file {
                Err("--ca and --certificate need an --address with https://".into())
            } else {
                Ok(endpoint)
            };
        }
        let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let mut tls = match ca {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let (Some(certificate), Some(private_key)) = (certificate, private_key) {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(private_key)?));
        }
        endpoint.tls_config(tls).map_err(|error| error_chain(&error))
    }
}

fn parse_address(text: &str) -> Result<Endpoint, String> {
    let expected = || "must be http://HOST:PORT, https://HOST:PORT, or unix:PATH".to_owned();
    if !["http://", "https://", "unix:"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err(expected());
    }
    Endpoint::from_shared(text.to_owned()).map_err(|_| expected())
}

pub(super) fn run(arguments: CheckArguments) -> Result<Output, Failure> {
    let CheckArguments { address, tls, token_file, request, context_extensions, expect } = arguments;
    let address = tls.apply_to(address)?;
    let token = token::read(token_file.as_deref())?;
    let request = request.with(context_extensions, token);
    let response = shutdown::block_on(send(&address, request.into())).map_err(|error| error.to_string())??;
    let (answer, text) = describe(response)?;
    if answer == expect {
        Ok(Output { text, exit: CommandExit::Succeeded })
    } else {
        Ok(Output { text: format!("{text}expected: {expect}\n"), exit: CommandExit::Denied })
    }
}

async fn send(endpoint: &Endpoint, request: CheckRequest) -> Result<CheckResponse, Failure> {
    let endpoint = endpoint.clone().connect_timeout(TIMEOUT).timeout(TIMEOUT);
    let unreachable = |error: String| {
        let address = endpoint.uri();
        let errors =
            format!("{address}: {error}: is the sidecar running, and is this its port for checks (listen.grpc)?");
        Failure { errors, exit: CommandExit::Unreachable }
    };
    let channel = endpoint.connect().await.map_err(|error| unreachable(error_chain(&error)))?;
    let response = AuthorizationClient::new(channel).check(request).await;
    response.map(tonic::Response::into_inner).map_err(|status| unreachable(status.to_string()))
}

/// The answer as `--expect` names it, and the text to print: a line with the answer, and one for each header that Envoy would add or send.
fn describe(response: CheckResponse) -> Result<(String, String), String> {
    let CheckResponse { status: _, dynamic_metadata: _, http_response } = response;
    let (answer, line, headers) = match http_response {
        None => return Err("the answer contains no verdict: is this the port for checks of a sidecar?".to_owned()),
        Some(HttpResponse::OkResponse(ok)) => (ALLOWED.to_owned(), ALLOWED.to_owned(), ok.headers),
        Some(HttpResponse::ErrorResponse(error)) => ("error".to_owned(), "error".to_owned(), error.headers),
        Some(HttpResponse::DeniedResponse(denied)) => {
            let reason = denial_reason(&denied.body).unwrap_or_else(|| "unknown".to_owned());
            let status = denied.status.map_or(0, |status| status.code);
            (reason.clone(), format!("denied: {status} {reason}"), denied.headers)
        }
    };
    let headers = headers.into_iter().filter_map(|option| option.header);
    let lines = std::iter::once(line).chain(headers.map(|header| format!("{}: {}", header.key, header.value)));
    Ok((answer, lines.collect::<Vec<_>>().join("\n") + "\n"))
}

/// The reason in the body of a denial.
fn denial_reason(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    // If the rule is about MCP, the body is an error of JSON-RPC, which contains the reason in `data`.
    let reason = body.pointer("/error/details/reason").or_else(|| body.pointer("/error/data/reason"));
    reason.and_then(Value::as_str).map(str::to_owned)
}
