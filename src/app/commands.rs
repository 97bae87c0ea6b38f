//! What each command does.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;

use super::cli::{Cli, Command, RunArgs};
use super::{AppError, DEFAULT_FILE, serve, summary};
use crate::config::{self, Checked};
use crate::example::{ExampleArgs, ExampleError};
use crate::net::Place;

/// Runs one command to its end.
pub(super) fn run(command: Command) -> Result<(), AppError> {
    match command {
        Command::Run(args) => Ok(serve::run(&read(&args)?.config)?),
        Command::Check { file } => check(&file),
        Command::Schema => print(&format!("{}\n", config::schema())),
        Command::Import { file } => import(&file),
        Command::ExampleServer(args) => example(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "trunkline", &mut script);
            write(&script)
        }
    }
}

/// Reads what is to be run, and tells what is odd about it.
fn read(args: &RunArgs) -> Result<Checked, AppError> {
    let mut checked = match (&args.mcp_servers, &args.config) {
        (Some(file), _) => config::load_mcp_servers(file, &variable)?,
        (None, Some(file)) => load(file)?,
        (None, None) => match Path::new(DEFAULT_FILE) {
            file if file.exists() => load(file)?,
            _ => return Err(AppError::NoConfig),
        },
    };
    if let Some(address) = args.listen {
        checked.config.server.listen.0 = vec![Place::Tcp(address)];
    }
    if let Some(address) = args.admin_listen {
        checked.config.admin.listen = address;
    }
    warn(checked.warnings.iter());
    warn(summary::unused_proxy(&checked.config, variable));
    Ok(checked)
}

fn example(args: ExampleArgs) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    Ok(runtime.map_err(ExampleError::Runtime)?.block_on(crate::example::run(args))?)
}

fn check(file: &Path) -> Result<(), AppError> {
    let checked = load(file)?;
    warn(checked.warnings.iter());
    warn(summary::missing_programs(&checked.config));
    warn(summary::unused_proxy(&checked.config, variable));
    print(&format!("{} is valid\n\n{}", file.display(), summary::Summary(&checked.config)))
}

fn import(file: &Path) -> Result<(), AppError> {
    let imported = config::import(file)?;
    warn(imported.warnings.iter().map(|warning| format!("{}: {warning}", file.display())));
    print(&imported.toml)
}

fn load(file: &Path) -> Result<Checked, AppError> {
    if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        return Err(AppError::Json(file.display().to_string()));
    }
    Ok(config::load(file, &variable)?)
}

/// A variable of this process; one that is no Unicode counts as not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn warn(warnings: impl IntoIterator<Item = impl std::fmt::Display>) {
    for warning in warnings {
        // Nobody is left to be told when this fails.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
}

fn print(text: &str) -> Result<(), AppError> {
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Result<(), AppError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(AppError::Output)
}
