//! Fills in the templates of `client/templates`. A placeholder is a name in two pairs of braces.

use super::{
    target::Target,
    tls::{self, SidecarTls},
    values::{HostPort, SidecarAddress, Values, in_milliseconds, in_seconds, label, plain_path, usage},
};
use crate::cli::{context::absolute_path, error::CliError};
use std::{path::PathBuf, time::Duration};

/// The bundle of certificate authorities of Debian.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

pub struct Settings {
    pub service: Option<String>,
    /// The URL of the control plane, for nginx.
    pub control_plane: Option<String>,
    /// The file of certificate authorities for the control plane; `None` for those of the system.
    pub authority: Option<PathBuf>,
    pub sidecar: SidecarAddress,
    /// TLS of the connection to the sidecar; `None` for clear text.
    pub tls: Option<SidecarTls>,
    pub upstream: HostPort,
    pub listen: HostPort,
    pub admin_port: u16,
    pub host: Option<String>,
    pub check_timeout: Duration,
    pub max_stream: Duration,
    pub namespace: String,
    pub gateway: String,
    pub key_file: String,
}

/// The address of the sidecar by default: the socket of the example systemd units, or the Service of the Helm chart in the namespace
/// that `docs/run/kubernetes.md` uses.
pub fn default_sidecar(is_local: bool) -> SidecarAddress {
    if is_local {
        return SidecarAddress::Unix("/run/countersign/authz.sock".to_owned());
    }
    let host = "countersign-ext-authz.identity.svc.cluster.local".to_owned();
    SidecarAddress::Tcp(HostPort { host, port: 9191 })
}

/// The address of the user's service by default: a port of this machine, or the Service `service` in Kubernetes.
pub fn default_upstream(is_local: bool) -> HostPort {
    HostPort { host: if is_local { "127.0.0.1" } else { "service" }.to_owned(), port: 8080 }
}

pub fn render(target: Target, settings: &Settings) -> Result<String, CliError> {
    let (template, values) = match target {
        Target::Envoy => (include_str!("../../../templates/envoy.yaml"), envoy_values(settings)),
        Target::EnvoyMcp => (include_str!("../../../templates/envoy-mcp.yaml"), envoy_values(settings)),
        Target::Istio => (include_str!("../../../templates/istio.yaml"), istio_values(settings)?),
        Target::IstioAmbient => (include_str!("../../../templates/istio-ambient.yaml"), istio_values(settings)?),
        Target::EnvoyGateway => (include_str!("../../../templates/envoy-gateway.yaml"), gateway_values(settings)?),
        Target::GatewayApi => (include_str!("../../../templates/gateway-api.yaml"), gateway_values(settings)?),
        Target::Nginx => (include_str!("../../../templates/nginx.conf"), nginx_values(settings)?),
    };
    let fill = |text: String, (name, value): &(&str, String)| text.replace(&format!("{{{{{name}}}}}"), value);
    Ok(tls::values(target, settings.tls.as_ref()).iter().chain(&values).fold(template.to_owned(), fill))
}

fn envoy_values(settings: &Settings) -> Values {
    let (sidecar_type, sidecar_address) = match &settings.sidecar {
        SidecarAddress::Unix(path) => ("STATIC", format!("pipe: {{ path: {path} }}")),
        SidecarAddress::Tcp(address) => {
            let HostPort { host, port } = address;
            (cluster_type(address), format!("socket_address: {{ address: \"{host}\", port_value: {port} }}"))
        }
    };
    vec![
        ("admin_port", settings.admin_port.to_string()),
        ("listen_host", settings.listen.host.clone()),
        ("listen_port", settings.listen.port.to_string()),
        ("max_stream", in_seconds(settings.max_stream)),
        ("max_stream_of_route", in_seconds(settings.max_stream.min(EXAMPLE_MAX_STREAM))),
        ("check_timeout", in_seconds(settings.check_timeout)),
        ("host", settings.host.as_deref().unwrap_or("*").to_owned()),
        ("service_rule", settings.service.as_deref().map(envoy_service_rule).unwrap_or_default()),
        ("sidecar_type", sidecar_type.to_owned()),
        ("sidecar_address", sidecar_address),
        ("upstream_type", cluster_type(&settings.upstream).to_owned()),
        ("upstream", settings.upstream.to_string()),
        ("upstream_host", settings.upstream.host.clone()),
        ("upstream_port", settings.upstream.port.to_string()),
    ]
}

/// The longest duration of streams on the example route `/stream`. A shorter `--max-stream` applies there too.
const EXAMPLE_MAX_STREAM: Duration = Duration::from_mins(15);

fn cluster_type(address: &HostPort) -> &'static str {
    if address.is_ip() { "STATIC" } else { "STRICT_DNS" }
}

/// The lines that name the service for all routes of a virtual host. Envoy adds the context extensions that a route has.
fn envoy_service_rule(service: &str) -> String {
    format!(
        "                      # The service of these routes. The first service of a sidecar needs no service_id.\n\
         \x20                     typed_per_filter_config:\n\
         \x20                       envoy.filters.http.ext_authz:\n\
         \x20                         \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute\n\
         \x20                         check_settings:\n\
         \x20                           context_extensions: {{ service_id: {service} }}\n\n"
    )
}

fn istio_values(settings: &Settings) -> Result<Values, CliError> {
    let mut values = kubernetes_values(settings)?;
    values.push(("check_timeout", in_seconds(settings.check_timeout)));
    Ok(values)
}

fn gateway_values(settings: &Settings) -> Result<Values, CliError> {
    let mut values = kubernetes_values(settings)?;
    let hostnames = settings.host.as_deref().filter(|host| *host != "*");
    let rule = settings.service.as_ref().map(|service| {
        format!("    contextExtensions:\n      - name: service_id\n        type: Value\n        value: {service}\n")
    });
    values.extend([
        ("gateway", settings.gateway.clone()),
        ("hostnames", hostnames.map(|host| format!("  hostnames:\n    - \"{host}\"\n")).unwrap_or_default()),
        ("check_timeout_ms", in_milliseconds(settings.check_timeout)),
        ("service_rule", rule.unwrap_or_default()),
    ]);
    Ok(values)
}

fn kubernetes_values(settings: &Settings) -> Result<Values, CliError> {
    let upstream = label(&settings.upstream.host).map_err(|_| {
        usage(
            "--upstream is not the name of a Service in Kubernetes",
            "write NAME:PORT; --namespace sets its namespace",
        )
    })?;
    let expected = "write NAME.NAMESPACE.svc.cluster.local:PORT: a gateway reaches the sidecar through a Service";
    let SidecarAddress::Tcp(sidecar) = &settings.sidecar else {
        return Err(usage("--sidecar is a Unix socket, which this target cannot use", expected));
    };
    let mut labels = sidecar.host.split('.');
    let (Some(name), Some(namespace), false) = (labels.next(), labels.next(), sidecar.is_ip()) else {
        return Err(usage("--sidecar does not name a Service and its namespace", expected));
    };
    let service_note = settings.service.as_ref().map_or_else(
        || "Of several services, the sidecar uses the first one in `sync.keys`, unless `settings.routes.default_service` or a rule names another.".to_owned(),
        |service| format!("Unless `sync.keys` begins with {service}, set `settings.routes.default_service`."),
    );
    Ok(vec![
        ("service_note", service_note),
        ("sidecar_host", sidecar.host.clone()),
        ("sidecar_name", name.to_owned()),
        ("sidecar_namespace", namespace.to_owned()),
        ("sidecar_port", sidecar.port.to_string()),
        ("upstream_name", upstream),
        ("upstream_port", settings.upstream.port.to_string()),
        ("namespace", settings.namespace.clone()),
        ("max_stream", in_seconds(settings.max_stream)),
    ])
}

fn nginx_values(settings: &Settings) -> Result<Values, CliError> {
    let server = control_plane(settings.control_plane.as_deref().unwrap_or_default())?;
    let authority = settings.authority.clone().map_or_else(|| SYSTEM_AUTHORITIES.into(), absolute_path);
    let authority = authority.to_str().and_then(|path| plain_path(path).ok()).ok_or_else(|| {
        let next = "move the file to a path of letters, digits and the characters . _ - /";
        usage("the path of --ca (COUNTERSIGN_CA) contains a character that has a meaning for nginx", next)
    })?;
    // No request has the host `_`. nginx uses a server with this name only as the default: if it is the first one on its port.
    let host = settings.host.as_deref().filter(|host| *host != "*").unwrap_or("_");
    Ok(vec![
        ("upstream", settings.upstream.to_string()),
        ("listen", settings.listen.to_string()),
        ("host", host.to_owned()),
        ("server", format!("https://{server}")),
        ("server_name", server.host),
        ("service", settings.service.clone().unwrap_or_default()),
        ("key_file", settings.key_file.clone()),
        ("ca", authority),
        ("check_timeout", in_milliseconds(settings.check_timeout)),
    ])
}

/// The host and port in the URL of the control plane. A URL with a path is refused.
fn control_plane(url: &str) -> Result<HostPort, CliError> {
    let rest = url.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    let address = rest.and_then(|text| text.parse().or_else(|_| format!("{text}:443").parse::<HostPort>()).ok());
    address.ok_or_else(|| usage("--server is not a URL that nginx can use", "write https://HOST:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    fn settings(is_local: bool) -> Settings {
        Settings {
            service: Some("svc_00000000000000000000000001".to_owned()),
            control_plane: Some("https://id.example:8443/".to_owned()),
            authority: None,
            sidecar: default_sidecar(is_local),
            tls: None,
            upstream: default_upstream(is_local),
            listen: HostPort { host: "127.0.0.1".to_owned(), port: 10_000 },
            admin_port: 9901,
            host: None,
            check_timeout: Duration::from_millis(250),
            max_stream: Duration::from_hours(1),
            namespace: "shop".to_owned(),
            gateway: "edge".to_owned(),
            key_file: "/etc/nginx/countersign.key".to_owned(),
        }
    }

    /// TLS with all options that a target uses.
    fn example_tls(target: Target) -> Option<SidecarTls> {
        let option = |name: &str, value: &str| target.tls_options().contains(&name).then(|| value.to_owned());
        let reference = if target.is_local() { "/tls/a.pem" } else { "example" };
        let options = tls::TlsArgs {
            sidecar_ca: option("sidecar-ca", reference),
            sidecar_server_name: option("sidecar-server-name", "authz.example"),
            client_certificate: option("client-certificate", reference),
            client_key: option("client-key", reference),
        };
        options.parse(target, &SidecarAddress::Tcp("authz.example:9191".parse().unwrap())).unwrap()
    }

    #[test]
    fn every_placeholder_has_a_value() {
        for target in Target::value_variants() {
            for tls in [None, example_tls(*target)] {
                let text = render(*target, &Settings { tls, ..settings(target.is_local()) }).unwrap();
                assert!(!text.contains("{{") && !text.contains("}}"), "{target:?}: {text}");
                let is_too_long = |line: &str| line.len() > 132 && !line.trim_start().starts_with("regex:");
                let untidy: Vec<_> =
                    text.lines().filter(|line| is_too_long(line) || line.trim_end() != *line).collect();
                assert!(untidy.is_empty(), "{target:?}: {untidy:?}");
            }
        }
    }

    #[test]
    fn no_route_has_longer_streams_than_the_listener() {
        let limits = |max_stream| {
            let text = render(Target::Envoy, &Settings { max_stream, ..settings(true) }).unwrap();
            let limits = text.lines().filter_map(|line| line.split_once("max_stream_duration: ")?.1.strip_suffix(" }"));
            limits.map(|limit| limit.trim_start_matches("{ max_stream_duration: ").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(limits(Duration::from_hours(1)), ["3600s", "900s"]);
        assert_eq!(limits(Duration::from_secs(3)), ["3s", "3s"]);
    }

    #[test]
    fn addresses_that_a_target_cannot_use_are_refused() {
        let unix = Settings { sidecar: default_sidecar(true), ..settings(false) };
        let short = Settings { sidecar: SidecarAddress::Tcp("sidecar:9191".parse().unwrap()), ..settings(false) };
        let ip = Settings { sidecar: SidecarAddress::Tcp("10.0.0.1:9191".parse().unwrap()), ..settings(false) };
        for settings in [unix, short, ip] {
            for target in [Target::Istio, Target::IstioAmbient, Target::EnvoyGateway, Target::GatewayApi] {
                assert!(render(target, &settings).is_err_and(|error| error.to_string().contains("--sidecar")));
            }
        }
        let settings = Settings { upstream: default_upstream(true), ..settings(false) };
        assert!(render(Target::Istio, &settings).is_err_and(|error| error.to_string().contains("--upstream")));
        for url in ["http://id.example", "https://id.example/path", "https://id.example;x", ""] {
            assert!(control_plane(url).is_err(), "{url}");
        }
        let expected = HostPort { host: "id.example".to_owned(), port: 443 };
        assert_eq!(control_plane("https://id.example").unwrap(), expected);
    }
}
