//! `countersign envoy`: configurations of Envoy, gateways and nginx for a service.

mod target;
mod template;
mod values;

use super::{
    prelude::{CliError, CommandOutput, Context, ServerArgs, ServiceArg, value_name},
    time,
};
use clap::{Args, Subcommand};
use serde_json::json;
use std::time::Duration;
use target::Target;
use template::Settings;
use values::{HostPort, SidecarAddress};

#[derive(Subcommand)]
pub enum EnvoyCommand {
    /// Print a configuration of Envoy, Istio, Envoy Gateway, the Gateway API or nginx for a service
    #[command(
        after_help = "The configuration has comments. It contains no secret. An option that the target does not use \
        is an error.\n\n\
        Examples:\n  \
        $ countersign envoy config --target envoy --listen 127.0.0.1:10000 --upstream 127.0.0.1:8080 > envoy.yaml\n  \
        $ countersign envoy config --target envoy-mcp --upstream 127.0.0.1:8080 > envoy.yaml\n  \
        $ countersign envoy config --target istio --upstream shop:8080 --namespace shop > istio.yaml\n  \
        $ countersign envoy config --target nginx --key-file /etc/nginx/countersign.key > /etc/nginx/conf.d/shop.conf\n\n\
        Next: send a request without a token; the answer must be 401"
    )]
    Config(Box<ConfigArgs>),
}

#[derive(Args)]
pub struct ConfigArgs {
    /// The proxy
    #[arg(long, value_enum)]
    target: Target,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArg,
    /// The sidecar: unix:PATH or HOST:PORT; in Kubernetes NAME.NAMESPACE.svc.cluster.local:PORT [default: the Unix socket of the
    /// example units, or countersign-ext-authz.identity.svc.cluster.local:9191, the Service of the chart in the namespace identity]
    #[arg(long, value_name = "ADDRESS")]
    sidecar: Option<SidecarAddress>,
    /// Your service, as HOST:PORT; in Kubernetes, HOST is the name of its Service, and for Istio with sidecars also the label
    /// app.kubernetes.io/name of its pods [default: 127.0.0.1:8080, or service:8080]
    #[arg(long, value_name = "HOST:PORT")]
    upstream: Option<HostPort>,
    /// The address on which Envoy or nginx listens [default: 127.0.0.1:10000]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<HostPort>,
    /// The admin port of Envoy, on loopback [default: 9901]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    admin_port: Option<u16>,
    /// The host name of the requests that the configuration is for [default: all hosts]
    #[arg(long, value_name = "HOST", value_parser = values::host_name)]
    host: Option<String>,
    /// How long the proxy waits for a decision, at most 1m [default: 250ms; with nginx 2s]
    #[arg(long, value_name = "DURATION", value_parser = check_timeout)]
    check_timeout: Option<Duration>,
    /// The longest duration of a stream, such as 1h, at most 24h [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = max_stream)]
    max_stream: Option<Duration>,
    /// The namespace of your service in Kubernetes [default: default]
    #[arg(long, value_name = "NAME", value_parser = values::label)]
    namespace: Option<String>,
    /// The name of the Gateway in Kubernetes [default: gateway]
    #[arg(long, value_name = "NAME", value_parser = values::label)]
    gateway: Option<String>,
    /// The file with the API key for nginx [default: /etc/nginx/countersign.key]
    #[arg(long, value_name = "FILE", value_parser = values::plain_path)]
    key_file: Option<String>,
}

fn check_timeout(text: &str) -> Result<Duration, String> {
    duration_up_to(text, Duration::from_mins(1), "write a duration of at most 1m, such as 250ms or 2s")
}

fn max_stream(text: &str) -> Result<Duration, String> {
    let duration = duration_up_to(text, Duration::from_hours(24), "write a duration of at most 24h, such as 5m or 1h")?;
    let is_whole = duration.subsec_nanos() == 0;
    is_whole.then_some(duration).ok_or_else(|| "write whole seconds, such as 5m or 1h".to_owned())
}

fn duration_up_to(text: &str, longest: Duration, expected: &str) -> Result<Duration, String> {
    let shortest = Duration::from_millis(1);
    let duration = time::positive_duration(text).ok().filter(|it| (shortest..=longest).contains(it));
    duration.ok_or_else(|| expected.to_owned())
}

pub fn run(context: &Context, command: EnvoyCommand) -> Result<CommandOutput, CliError> {
    let EnvoyCommand::Config(args) = command;
    let target = args.target;
    check_options(&args)?;
    let settings = settings(context, *args)?;
    let config = template::render(target, &settings)?;
    let json = json!({ "target": value_name(target), "config": config });
    Ok(CommandOutput::new(config, json).with_note(note(target, &settings)))
}

/// Refuses an option that has no effect on the configuration of this target.
fn check_options(args: &ConfigArgs) -> Result<(), CliError> {
    let set = [
        ("sidecar", args.sidecar.is_some()),
        ("upstream", args.upstream.is_some()),
        ("listen", args.listen.is_some()),
        ("admin-port", args.admin_port.is_some()),
        ("host", args.host.is_some()),
        ("check-timeout", args.check_timeout.is_some()),
        ("max-stream", args.max_stream.is_some()),
        ("namespace", args.namespace.is_some()),
        ("gateway", args.gateway.is_some()),
        ("key-file", args.key_file.is_some()),
    ];
    let used = args.target.options();
    match set.into_iter().find(|(name, is_set)| *is_set && !used.contains(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let options = used.iter().map(|name| format!("--{name}")).collect::<Vec<_>>().join(", ");
            let text = format!("--{name} has no effect on the target {}", value_name(args.target));
            Err(CliError::usage(text).with_next(format!("this target uses {options}")))
        }
    }
}

fn settings(context: &Context, args: ConfigArgs) -> Result<Settings, CliError> {
    let is_nginx = args.target == Target::Nginx;
    let has_service = args.service.service.is_some() || context.profile.service.is_some();
    // nginx sends the id of the service to the control plane. Envoy needs no id: a sidecar of one service knows its service.
    let service = (has_service || is_nginx).then(|| context.service(&args.service)).transpose()?;
    let control_plane = is_nginx.then(|| context.url(&args.server)).transpose()?;
    let default_timeout = Duration::from_millis(if is_nginx { 2000 } else { 250 });
    let is_local = args.target.is_local();
    Ok(Settings {
        service,
        control_plane,
        authority: context.authority(&args.server),
        sidecar: args.sidecar.unwrap_or_else(|| template::default_sidecar(is_local)),
        upstream: args.upstream.unwrap_or_else(|| template::default_upstream(is_local)),
        listen: args.listen.unwrap_or_else(|| HostPort { host: "127.0.0.1".to_owned(), port: 10_000 }),
        admin_port: args.admin_port.unwrap_or(9901),
        host: args.host,
        check_timeout: args.check_timeout.unwrap_or(default_timeout),
        max_stream: args.max_stream.unwrap_or(Duration::from_hours(1)),
        namespace: args.namespace.unwrap_or_else(|| "default".to_owned()),
        gateway: args.gateway.unwrap_or_else(|| "gateway".to_owned()),
        key_file: args.key_file.unwrap_or_else(|| "/etc/nginx/countersign.key".to_owned()),
    })
}

/// The note of the command: what the user must do besides installing the configuration.
fn note(target: Target, settings: &Settings) -> String {
    let sidecar = "Next: run the sidecar at this address: docs/run/sidecar.md, or the chart countersign-ext-authz";
    match target {
        Target::Envoy => sidecar.to_owned(),
        Target::EnvoyMcp => format!("{sidecar}\nNext: give the sidecar a rule with a table `mcp`: docs/use/mcp.md"),
        Target::Istio | Target::IstioAmbient | Target::EnvoyGateway | Target::GatewayApi => {
            format!("{sidecar}\nNext: after the installation, send a request without a token; the answer must be 401")
        }
        Target::Nginx => format!(
            "Next: create {} of mode 0600 with the line: proxy_set_header Authorization \"Bearer API_KEY\";",
            settings.key_file
        ),
    }
}
