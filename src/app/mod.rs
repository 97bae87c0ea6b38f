//! The command line, and the wiring of the rooms behind it.

mod cli;
mod commands;
mod serve;
mod summary;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::config::{ConfigError, ImportError};
use cli::Cli;

/// The exit code of failures while running.
const FAILED: u8 = 1;
/// The exit code of wrong usage and of configurations that cannot be run; clap uses the same.
const USAGE: u8 = 2;

/// Runs the command line of this process to its end.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) => {
            // Help and version come this way too. Nobody is left to be told when this fails.
            let _ = asked.print();
            return ExitCode::from(u8::try_from(asked.exit_code()).unwrap_or(USAGE));
        }
    };
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(AppError::Output(why)) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// The configuration cannot be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A client's file cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// No file was named and there is none where it would be.
    #[error(
        "there is no `{DEFAULT_FILE}` in this folder; name a file with `-c FILE`, begin with a copy of \
         config.example.toml, or run a client's servers with `--mcp-servers FILE`"
    )]
    NoConfig,
    /// A client's JSON was given where a TOML file belongs.
    #[error(
        "{0} is JSON; run it with `--mcp-servers {0}`, or turn it into TOML with `trunkline import {0}`"
    )]
    Json(String),
    /// The example server does not run.
    #[error(transparent)]
    Example(#[from] crate::example::ExampleError),
    /// The gateway does not run.
    #[error(transparent)]
    Run(#[from] serve::RunError),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

/// What `run` reads when no file is named.
const DEFAULT_FILE: &str = "trunkline.toml";

impl AppError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Import(_) | Self::NoConfig | Self::Json(_) => USAGE,
            Self::Output(_) | Self::Run(_) | Self::Example(_) => FAILED,
        }
    }
}

/// Prints an error with its causes. Problems of a file stand alone on their lines, as compilers print them.
fn complain(error: &AppError) {
    let mut text = String::new();
    match error {
        AppError::Config(ConfigError::Invalid(problems))
        | AppError::Import(ImportError::Config(ConfigError::Invalid(problems))) => {
            let count = problems.iter().count();
            let plural = if count == 1 { "problem" } else { "problems" };
            text.push_str(&format!("{problems}\nerror: {count} {plural} in the configuration\n"));
        }
        error => {
            text.push_str(&format!("error: {error}\n"));
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!("  because: {error}\n"));
                cause = error.source();
            }
        }
    }
    // Nobody is left to be told when this fails.
    let _ = io::stderr().write_all(text.as_bytes());
}
