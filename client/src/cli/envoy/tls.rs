//! TLS between the proxy and the sidecar, as the options of `countersign envoy config` describe it.
//!
//! Invariant: a proxy that uses TLS verifies the authority and the name of the sidecar's certificate.

use super::{
    target::Target,
    values::{SidecarAddress, Values, dns_name, object_name, plain_path, usage},
};
use crate::cli::error::CliError;
use clap::Args;
use std::net::IpAddr;

/// The options for TLS of the connection to the sidecar.
#[derive(Args)]
pub struct TlsArgs {
    /// The CA that signed the sidecar's certificate. With it, the proxy uses TLS. For Envoy, a PEM file; for Istio, a Secret with the key
    /// ca.crt in the namespace of your service; for Envoy Gateway and the Gateway API, a `ConfigMap` with the key ca.crt in the
    /// namespace of the sidecar [default: no TLS]
    #[arg(long, value_name = "FILE|NAME")]
    pub sidecar_ca: Option<String>,
    /// The name that the sidecar's certificate must have [default: the host of --sidecar]
    #[arg(long, value_name = "HOST", value_parser = dns_name)]
    pub sidecar_server_name: Option<String>,
    /// The certificate of the proxy, if the sidecar requires one. For Envoy, a PEM file; for Istio, the Secret of --sidecar-ca, with the
    /// keys tls.crt and tls.key, too; for Envoy Gateway, a Secret of type kubernetes.io/tls in the namespace of the Gateway
    #[arg(long, value_name = "FILE|NAME")]
    pub client_certificate: Option<String>,
    /// For Envoy: the PEM file with the private key of --client-certificate
    #[arg(long, value_name = "FILE", value_parser = plain_path)]
    pub client_key: Option<String>,
}

/// How the proxy verifies the sidecar, and proves who it is itself.
pub struct SidecarTls {
    /// A file, or the name of a Secret or `ConfigMap`.
    ca: String,
    server_name: String,
    client: Option<ClientCertificate>,
}

/// The certificate of the proxy.
enum ClientCertificate {
    Files { certificate: String, key: String },
    Secret(String),
}

impl TlsArgs {
    /// Checks the options together. `None` if the proxy uses no TLS.
    pub fn parse(self, target: Target, sidecar: &SidecarAddress) -> Result<Option<SidecarTls>, CliError> {
        let Self { sidecar_ca, sidecar_server_name, client_certificate, client_key } = self;
        let Some(ca) = sidecar_ca else {
            let needs_ca = [
                ("--sidecar-server-name", sidecar_server_name.is_some()),
                ("--client-certificate", client_certificate.is_some()),
                ("--client-key", client_key.is_some()),
            ];
            return match needs_ca.into_iter().find(|(_, is_set)| *is_set) {
                None => Ok(None),
                Some((name, _)) => {
                    let next = "set --sidecar-ca to the CA that signed the certificate of the sidecar";
                    Err(usage(&format!("{name} needs --sidecar-ca"), next))
                }
            };
        };
        let SidecarAddress::Tcp(address) = sidecar else {
            let next = "write --sidecar HOST:PORT, or remove --sidecar-ca: a Unix socket needs no TLS";
            return Err(usage("--sidecar-ca is set, but the sidecar is at a Unix socket", next));
        };
        Ok(Some(SidecarTls {
            ca: reference(target, "--sidecar-ca", &ca)?,
            server_name: sidecar_server_name.unwrap_or_else(|| address.host.clone()),
            client: client(target, client_certificate, client_key, &ca)?,
        }))
    }
}

/// The certificate of the proxy, if there is one.
fn client(
    target: Target,
    certificate: Option<String>,
    key: Option<String>,
    ca: &str,
) -> Result<Option<ClientCertificate>, CliError> {
    let certificate = certificate.map(|it| reference(target, "--client-certificate", &it)).transpose()?;
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(ClientCertificate::Files { certificate, key })),
        (Some(secret), None) if !target.is_local() => {
            let is_istio = matches!(target, Target::Istio | Target::IstioAmbient);
            if is_istio && secret != ca {
                let next = "put tls.crt, tls.key and ca.crt into one Secret, and name it in both options";
                return Err(usage(
                    "--client-certificate is not the Secret of --sidecar-ca, but Istio reads one Secret",
                    next,
                ));
            }
            Ok(Some(ClientCertificate::Secret(secret)))
        }
        (Some(_), None) => Err(usage("--client-certificate needs --client-key", "set both options, or none")),
        (None, Some(_)) => Err(usage("--client-key needs --client-certificate", "set both options, or none")),
    }
}

/// A file for a proxy on this machine, or the name of an object in Kubernetes.
fn reference(target: Target, option: &str, text: &str) -> Result<String, CliError> {
    let (parsed, expected) = if target.is_local() {
        (plain_path(text), "is not the path of a file")
    } else {
        (object_name(text), "is not the name of an object in Kubernetes")
    };
    parsed.map_err(|next| usage(&format!("{option} {expected}"), next))
}

/// The values of the placeholders for TLS in the template of a target. They come before the other values, because the texts of TLS have
/// placeholders, too.
pub fn values(target: Target, tls: Option<&SidecarTls>) -> Values {
    let Some(tls) = tls else { return vec![("sidecar_tls", String::new())] };
    let mut values = match target {
        Target::Envoy | Target::EnvoyMcp => envoy_values(tls),
        Target::Istio | Target::IstioAmbient => istio_values(target, tls),
        Target::EnvoyGateway | Target::GatewayApi => gateway_values(tls),
        Target::Nginx => Vec::new(),
    };
    values.extend([("sidecar_ca", tls.ca.clone()), ("server_name", tls.server_name.clone())]);
    values
}

fn envoy_values(tls: &SidecarTls) -> Values {
    let is_ip = tls.server_name.parse::<IpAddr>().is_ok();
    let client_certificate = match &tls.client {
        Some(ClientCertificate::Files { certificate, key }) => format!(
            "            tls_certificates:\n              - certificate_chain: {{ filename: {certificate} }}\n\
             \x20               private_key: {{ filename: {key} }}\n"
        ),
        Some(ClientCertificate::Secret(_)) | None => String::new(),
    };
    vec![
        ("sidecar_tls", include_str!("../../../templates/tls/envoy.yaml").to_owned()),
        // SNI is for names only.
        ("sni", if is_ip { String::new() } else { "          sni: {{server_name}}\n".to_owned() }),
        ("san_type", if is_ip { "IP_ADDRESS" } else { "DNS" }.to_owned()),
        ("client_certificate", client_certificate),
    ]
}

fn istio_values(target: Target, tls: &SidecarTls) -> Values {
    let keys = if tls.client.is_some() { "tls.crt, tls.key and ca.crt" } else { "ca.crt" };
    let (name, selector) = if target == Target::IstioAmbient {
        ("{{sidecar_name}}", String::new())
    } else {
        let reason = "  # Without this selector, the proxies would ignore `credentialName`, and send clear text.\n";
        let labels = "  workloadSelector:\n    matchLabels:\n      app.kubernetes.io/name: {{upstream_name}}\n";
        ("{{upstream_name}}-countersign", format!("{reason}{labels}"))
    };
    vec![
        ("sidecar_tls", include_str!("../../../templates/tls/istio.yaml").to_owned()),
        ("credential_note", format!("The Secret `{}` in the namespace `{{{{namespace}}}}` must have {keys}.", tls.ca)),
        ("tls_mode", if tls.client.is_some() { "MUTUAL" } else { "SIMPLE" }.to_owned()),
        ("tls_rule_name", name.to_owned()),
        ("workload_selector", selector),
    ]
}

fn gateway_values(tls: &SidecarTls) -> Values {
    let mut text = include_str!("../../../templates/tls/gateway.yaml").to_owned();
    let client = match &tls.client {
        Some(ClientCertificate::Secret(name)) => {
            text.push_str(include_str!("../../../templates/tls/envoy-gateway-client.yaml"));
            name.clone()
        }
        Some(ClientCertificate::Files { .. }) | None => String::new(),
    };
    vec![("sidecar_tls", text), ("client_secret", client)]
}
