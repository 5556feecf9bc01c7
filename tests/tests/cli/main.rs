//! The command line `countersign`, and clients in other languages.

mod agent_exec;
mod agent_oauth;
mod client;
mod client_advice;
mod client_commands;
mod client_enforcement;
mod client_errors;
mod client_interface;
mod client_listen;
mod client_usage;
mod client_webhooks;
mod declared_state;
mod doctor;
mod foreign_clients;
mod generated_clients;
mod human_login;
mod human_login_errors;
mod human_login_refresh;
mod tenants;
