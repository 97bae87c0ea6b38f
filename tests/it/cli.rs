//! The command line: checking, schema, importing, exit codes.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fake::{Fake, stdio};
use crate::gateway::{Gateway, run, trunkline};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

const GOOD: &str = r#"
[upstreams.notes]
command = ["{self}", "example-server", "--stdio"]

[[routes]]
path = "/mcp"
protocol = "mcp"
upstreams = ["notes"]
"#;

#[tokio::test]
async fn a_good_file_passes_the_check() {
    let files = Files::new();
    let file = files.write("good.toml", GOOD);
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[tokio::test]
async fn mistakes_are_named_with_file_line_and_the_nearest_key() {
    let files = Files::new();
    for (name, text, wanted) in [
        ("unknown.toml", "[server]\n\nlisen = \"127.0.0.1:0\"\n", &["lisen", "listen", ":3"][..]),
        (
            "upstream.toml",
            "[upstreams.a]\nurl = \"http://127.0.0.1:1/\"\ntimeou = \"1s\"\n",
            &["timeou", "timeout", ":3"],
        ),
        ("route.toml", "[[routes]]\npath = \"/x\"\nfailureMode = 1\n", &["failureMode", ":3"]),
        ("section.toml", "[servr]\nlisten = \"127.0.0.1:0\"\n", &["servr", "server", ":1"]),
        ("syntax.toml", "[server]\nlisten = \n", &[":2"]),
        ("type.toml", "[server]\nmax_batch = \"many\"\n", &["max_batch", ":2"]),
        (
            "duration.toml",
            "[upstreams.a]\nurl = \"http://127.0.0.1:1/\"\ntimeout = \"soon\"\n",
            &["soon", ":3"],
        ),
        (
            "reference.toml",
            "[upstreams.notes]\nurl = \"http://127.0.0.1:1/\"\n\n[[routes]]\npath = \"/mcp\"\nupstreams = [\"note\"]\n",
            &["note", "notes", "/mcp"],
        ),
        (
            "twice.toml",
            "[upstreams.a]\nurl = \"http://127.0.0.1:1/\"\n[[routes]]\npath = \"/x\"\nupstreams = [\"a\"]\n[[routes]]\npath = \"/x\"\nupstreams = [\"a\"]\n",
            &["/x"],
        ),
        ("neither.toml", "[upstreams.a]\ntimeout = \"1s\"\n", &["a", "command", "url"]),
        (
            "env.toml",
            "[upstreams.a]\nurl = \"${TRUNKLINE_NOT_SET_ANYWHERE}\"\n",
            &["TRUNKLINE_NOT_SET_ANYWHERE"],
        ),
    ] {
        let file = files.write(name, text);
        let file = file.to_str().unwrap();
        for args in [&["check", file][..], &["run", "-c", file]] {
            let ended = run(args).await;
            assert_eq!(ended.code, Some(2), "{args:?}: {}{}", ended.stdout, ended.stderr);
            let wanted = wanted.iter().chain([&name]);
            for part in wanted {
                assert!(ended.stderr.contains(part), "{part} is not in: {}", ended.stderr);
            }
        }
    }
}

#[tokio::test]
async fn listening_beyond_loopback_without_identity_must_be_wanted() {
    let files = Files::new();
    let open = format!("[server]\nlisten = \"0.0.0.0:0\"\n{GOOD}");
    let file = files.write("open.toml", &open);
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("allow_unauthenticated"), "{}", ended.stderr);
    let wanted = open.replace(":0\"", ":0\"\nallow_unauthenticated = true");
    let file = files.write("wanted.toml", &wanted);
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn without_a_file_the_example_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = trunkline().arg("run").current_dir(folder.path()).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("config.example.toml"), "{said}");
    let ended = run(&["run", "-c", "/no/such/file.toml"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("/no/such/file.toml"), "{}", ended.stderr);
}

#[tokio::test]
async fn usage_errors_are_2_and_help_is_everywhere() {
    for args in [&["nonsense"][..], &["run", "--nonsense"], &["check"], &["import"]] {
        let ended = run(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(!ended.stderr.is_empty());
    }
    for command in ["run", "check", "schema", "import", "example-server"] {
        let ended = run(&[command, "--help"]).await;
        assert_eq!(ended.code, Some(0), "{command}");
        assert!(ended.stdout.len() > 50, "{command}: {}", ended.stdout);
    }
    let ended = run(&["--version"]).await;
    assert!(ended.stdout.contains(env!("CARGO_PKG_VERSION")), "{}", ended.stdout);
}

#[tokio::test]
async fn a_port_that_is_taken_ends_the_start_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let files = Files::new();
    let text = format!("server.listen = \"{addr}\"\nadmin.listen = \"127.0.0.1:0\"\n{GOOD}");
    let file = files.write("taken.toml", &text);
    let ended = run(&["run", "-c", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(&addr.to_string()), "{}", ended.stderr);
}

#[tokio::test]
async fn the_schema_describes_the_file() {
    let ended = run(&["schema"]).await;
    assert_eq!(ended.code, Some(0));
    let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
    for section in ["server", "admin", "upstreams", "routes", "telemetry"] {
        assert!(schema["properties"][section].is_object(), "{section}");
    }
    for key in
        ["max_body", "max_batch", "batch_concurrency", "drain_timeout", "isolation", "rename"]
    {
        assert!(ended.stdout.contains(&format!("\"{key}\"")), "{key}");
    }
    assert!(ended.stdout.contains("description"));
}

/// The shapes that clients write, each with a child `kid` and a remote `far`.
fn shapes(kid: &[String], url: &str) -> [(&'static str, Value); 4] {
    let (program, args) = (&kid[0], &kid[1..]);
    [
        (
            "claude.json",
            json!({"mcpServers": {
                "kid": {"command": program, "args": args, "env": {"TOKEN": "t0p"}},
                "far": {"type": "http", "url": url, "headers": {"X-Key": "k"}},
            }}),
        ),
        (
            "cursor.json",
            json!({"mcpServers": {
                "kid": {"command": program, "args": args, "env": {"TOKEN": "t0p"}, "disabled": false},
                "far": {"url": url, "headers": {"X-Key": "k"}},
                "off": {"command": "/no/such", "disabled": true},
            }}),
        ),
        (
            "vscode.json",
            json!({"servers": {
                "kid": {"type": "stdio", "command": program, "args": args, "env": {"TOKEN": "t0p"}},
                "far": {"type": "http", "url": url, "headers": {"X-Key": "k"}},
            }, "inputs": []}),
        ),
        (
            "settings.json",
            json!({"mcp": {"servers": {
                "kid": {"type": "stdio", "command": program, "args": args, "env": {"TOKEN": "t0p"}},
                "far": {"type": "http", "url": url, "headers": {"X-Key": "k"}},
            }}}),
        ),
    ]
}

fn kid() -> Vec<String> {
    vec![stdio::program().display().to_string(), json!({}).to_string()]
}

async fn check_both(gateway: &Gateway, far: &Fake) {
    let client = gateway.mcp().await;
    client
        .until_tools("both", |tools| {
            ["kid__env", "far__x"].iter().all(|name| tools.contains(&(*name).to_owned()))
        })
        .await;
    assert_eq!(client.call("far__x", json!({})).await.said(), "x");
    let seen: Value =
        serde_json::from_str(client.call("kid__env", json!({})).await.said()).unwrap();
    assert_eq!(seen["vars"]["TOKEN"], "t0p");
    assert_eq!(far.of("tools/call")[0].header("x-key"), Some("k"));
}

#[tokio::test]
async fn the_servers_of_a_client_are_imported_and_run() {
    for n in 0..4 {
        let far = Fake::mcp(["x"]).start().await;
        let (name, shape) = shapes(&kid(), &far.url())[n].clone();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, shape.to_string()).unwrap();
        let ended = run(&["import", file.to_str().unwrap()]).await;
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        let mut table: toml::Table = ended.stdout.parse().unwrap();
        assert_eq!(table["upstreams"]["far"]["url"].as_str(), Some(far.url().as_str()), "{name}");
        let free = toml::Table::from_iter([("listen".to_owned(), "127.0.0.1:0".into())]);
        for section in ["server", "admin"] {
            table.insert(section.to_owned(), free.clone().into());
        }
        let text = table.to_string();
        let imported = folder.path().join("t.toml");
        std::fs::write(&imported, &text).unwrap();
        let ended = run(&["check", imported.to_str().unwrap()]).await;
        assert_eq!(ended.code, Some(0), "{name}: {} of\n{text}", ended.stderr);
        let mut command = trunkline();
        command.args(["run", "-c"]).arg(&imported);
        check_both(&Gateway::spawn(command, folder).await, &far).await;
    }
}

#[tokio::test]
async fn the_servers_of_a_client_run_without_a_file_of_ours() {
    let far = Fake::mcp(["x"]).start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mcp.json");
    std::fs::write(&file, shapes(&kid(), &far.url())[0].1.to_string()).unwrap();
    let mut command = trunkline();
    command.args(["run", "--mcp-servers"]).arg(&file).args(["--listen", "127.0.0.1:0"]);
    command.args(["--admin-listen", "127.0.0.1:0"]);
    check_both(&Gateway::spawn(command, folder).await, &far).await;
    let ended = run(&["run", "--mcp-servers", "x.json", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("configuration file"), "{}", ended.stderr);
}

#[tokio::test]
async fn a_wrong_client_file_is_refused_with_a_reason() {
    let files = Files::new();
    for (name, text) in
        [("no.json", "{"), ("empty.json", "{}"), ("odd.json", r#"{"mcpServers": 5}"#)]
    {
        let file = files.write(name, text);
        let ended = run(&["import", file.to_str().unwrap()]).await;
        assert_eq!(ended.code, Some(2), "{name}: {}", ended.stdout);
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{}", ended.stdout);
    }
}

#[tokio::test]
async fn the_example_server_speaks_on_stdio() {
    let mut child = trunkline()
        .args(["example-server", "--stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let hello = crate::mcp::hello("2025-11-25", &json!({}));
    let line = format!("{}\n", crate::mcp::request(1, "initialize", &hello));
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, line.as_bytes()).await.unwrap();
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    let answer = crate::client::patient("an answer", lines.next_line()).await.unwrap().unwrap();
    assert!(answer.contains("serverInfo"), "{answer}");
    drop(stdin);
    let status = crate::client::patient("its end", child.wait()).await.unwrap();
    assert!(status.success());
}
