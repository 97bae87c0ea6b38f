//! The command line of `examples/fake_stdio.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The line of an upstream's configuration that starts the fake child with this script; the script's
/// members are described in `examples/fake_stdio.rs`.
pub fn command(script: &Value) -> String {
    let command = toml::Value::Array(vec![
        toml::Value::String(program().display().to_string()),
        toml::Value::String(script.to_string()),
    ]);
    format!("command = {command}")
}

/// The program; built if `cargo test --test it` left it out.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let bin = Path::new(env!("CARGO_BIN_EXE_trunkline"));
        let folder = bin.parent().expect("the binary lies in a folder");
        let program = folder.join("examples").join("fake_stdio");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        let scene = sources.join("tests/it/fake/scene").read_dir().expect("it is there");
        let scene = scene.flatten().map(|entry| entry.path());
        let mut sources = scene.chain([sources.join("examples/fake_stdio.rs")]);
        if sources.any(|source| is_older(&program, &source)) {
            build(folder.ends_with("release"));
        }
        program
    })
}

fn is_older(program: &Path, source: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    match (time(program), time(source)) {
        (Some(program), Some(source)) => program < source,
        (program, _) => program.is_none(),
    }
}

fn build(release: bool) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "-q", "--example", "fake_stdio"]);
    if release {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cannot build the fake child");
}
