//! What can be asked for on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::example::ExampleArgs;

/// Reverse proxy and gateway for JSON-RPC 2.0 and the Model Context Protocol (MCP).
///
/// Clients talk to one endpoint; behind it stand many MCP servers and plain JSON-RPC services.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, arg_required_else_help = true)]
#[command(after_long_help = "\
Examples:
  trunkline run -c config.example.toml        try it: example servers behind one endpoint
  trunkline import mcp.json > trunkline.toml  begin with the servers of an MCP client
  trunkline check trunkline.toml              see what is wrong, and what would be served
  trunkline run                               run ./trunkline.toml

Exit codes: 0 fine, 1 failed while running, 2 wrong usage or configuration.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway
    ///
    /// Prints where it listens and what each route serves, then a line that begins with `ready`.
    /// SIGTERM and ctrl-c end it: no new work is taken, and what runs may finish within
    /// `drain_timeout`.
    Run(RunArgs),
    /// Check a configuration file and show what it would serve
    ///
    /// Errors carry the file, the line, the wrong key and the nearest right one. Nothing is started
    /// and nothing is dialled.
    Check {
        /// The TOML file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the JSON Schema of the configuration file, for editors
    Schema,
    /// Turn the `mcpServers` JSON of an MCP client into a configuration file on standard output
    ///
    /// Takes the files of Claude Desktop, Cursor and VS Code, with comments. What cannot be carried
    /// over is left out and told on standard error.
    Import {
        /// The JSON file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Run the built-in example server, to have something to put the gateway in front of
    ///
    /// An MCP server on standard input and output, over Streamable HTTP or over WebSocket (on /mcp),
    /// with plain JSON-RPC 2.0 beside it (on /rpc: sum, calculate, echo, sleep, fail; over WebSocket
    /// also demo_subscribe, demo_unsubscribe and demo_publish). It speaks all revisions of MCP, with
    /// sessions and without.
    ExampleServer(ExampleArgs),
    /// Print a completion script for a shell
    ///
    /// For bash: `trunkline completions bash > ~/.local/share/bash-completion/completions/trunkline`.
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

/// Options of `trunkline run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The configuration file [default: trunkline.toml in this folder]
    ///
    /// Every key is shown in config.example.toml.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Run straight from the `mcpServers` JSON of an MCP client, on the route /mcp
    ///
    /// Takes the files of Claude Desktop, Cursor and VS Code, as `trunkline import` does.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub(crate) mcp_servers: Option<PathBuf>,
    /// With `--mcp-servers`: where clients connect, port 0 for a free one [default: 127.0.0.1:8808]
    #[arg(long, value_name = "ADDR", requires = "mcp_servers", value_parser = loopback)]
    pub(crate) listen: Option<SocketAddr>,
    /// With `--mcp-servers`: where /metrics, /livez and /readyz are [default: 127.0.0.1:9808]
    #[arg(long, value_name = "ADDR", requires = "mcp_servers", value_parser = loopback)]
    pub(crate) admin_listen: Option<SocketAddr>,
}

/// An address that only this machine reaches; others are for files, where it can be said who may use them.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "not an address and port".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("listening beyond loopback needs a configuration file".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for option in command.get_arguments() {
                assert!(option.get_help().is_some(), "{} {}", command.get_name(), option.get_id());
            }
        }
    }
}
