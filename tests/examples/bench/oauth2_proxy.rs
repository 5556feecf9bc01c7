//! oauth2-proxy, which decides about requests with bearer tokens for Envoy over HTTP/1.1. It verifies the signature of each token.

use crate::tokens::TokenIssuer;
use countersign_tests::{
    process::{Process, eventually, free_port},
    tools,
};
use std::process::Command;
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A running oauth2-proxy with one thread for Go code.
pub struct OAuth2Proxy {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl OAuth2Proxy {
    /// Starts oauth2-proxy, if it is installed. It accepts the tokens of the issuer.
    pub async fn start(issuer: &TokenIssuer) -> Option<Self> {
        let program = tools::optional_program("oauth2-proxy")?;
        let (folder, port) = (tempfile::tempdir().expect("a temporary folder can be created"), free_port());
        let mut command = Command::new(program);
        command.env("GOMAXPROCS", "1");
        for (name, value) in [
            ("http-address", format!("127.0.0.1:{port}")),
            ("provider", "oidc".to_owned()),
            ("skip-oidc-discovery", "true".to_owned()),
            ("oidc-issuer-url", issuer.issuer().to_owned()),
            ("oidc-jwks-url", issuer.jwks_url()),
            ("oidc-enabled-signing-alg", "ES256".to_owned()),
            // The addresses of the login in a browser, which no request uses.
            ("login-url", format!("{}/login", issuer.issuer())),
            ("redeem-url", format!("{}/redeem", issuer.issuer())),
            ("provider-ca-file", issuer.ca().display().to_string()),
            ("client-id", issuer.service().to_owned()),
            ("client-secret", "unused".to_owned()),
            ("cookie-secret", "0123456789abcdef".to_owned()),
            ("email-domain", "*".to_owned()),
            ("oidc-email-claim", "sub".to_owned()),
            ("skip-jwt-bearer-tokens", "true".to_owned()),
            ("upstream", "static://200".to_owned()),
            ("request-logging", "false".to_owned()),
            ("auth-logging", "false".to_owned()),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        let process = Process::start(command, &folder.path().join("log"));
        let listens = async || TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop);
        eventually("oauth2-proxy listens", listens, || process.log()).await;
        Some(Self { process, port, _folder: folder })
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }
}
