//! Unix sockets and IPv6: listened on, and dialled.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::client::patient;
use crate::fake::Fake;
use crate::gateway::{Setup, run};
use crate::mcp::{NEWEST, hello, request};
use crate::wire::{http1, post, unix};

/// A gateway that listens on a socket of this folder too.
fn on(socket: &Path, up: &Fake) -> Setup {
    Setup::new()
        .listen(&format!("[\"127.0.0.1:0\", \"unix:{}\"]", socket.display()))
        .server("socket_mode = \"660\"")
        .plain("node", up, "")
        .rpc("\"*\" = \"node\"")
}

/// What becomes of a gateway that listens there and nowhere else.
async fn refused(folder: &Path, socket: &Path) -> String {
    let file = folder.join("refused.toml");
    let text = format!(
        "[server]\nlisten = \"unix:{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        socket.display()
    );
    std::fs::write(&file, text).unwrap();
    let ended = run(&["run", "-c", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    ended.stderr
}

const SUM: &str = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":["a"]}"#;

#[tokio::test]
async fn c135_a_socket_is_served_with_its_mode_and_removed_and_what_is_alive_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gw.sock");
    let up = Fake::plain().start().await;
    let mut gateway = on(&socket, &up).start().await;
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let answer = http1(unix(&socket).await, post("/rpc", SUM)).await;
    assert_eq!((answer.status, answer.json()["result"].clone()), (200, json!(["a"])));
    assert_eq!(gateway.http().post("/rpc", SUM).await.status, 200, "the address beside it");
    gateway.until_log("an access line", |log| log.count("client=unix") == 1).await;
    let mut foreign = post("/rpc", SUM);
    foreign.headers_mut().insert("host", "evil.example".parse().unwrap());
    assert_eq!(http1(unix(&socket).await, foreign).await.status, 403);
    let mut page = post("/rpc", SUM);
    page.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    assert_eq!(http1(unix(&socket).await, page).await.status, 403);

    let told = refused(folder.path(), &socket).await;
    assert!(told.contains("another process listens there"), "{told}");
    assert_eq!(http1(unix(&socket).await, post("/rpc", SUM)).await.status, 200, "it lives on");
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(0));
    assert!(!socket.exists(), "its file is gone");
}

#[tokio::test]
async fn c135_a_socket_that_nobody_serves_is_replaced_and_anything_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gw.sock");
    let up = Fake::plain().start().await;
    // What a gateway leaves behind that is killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    let gateway = on(&socket, &up).start().await;
    assert_eq!(http1(unix(&socket).await, post("/rpc", SUM)).await.status, 200);
    drop(gateway);

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let told = refused(folder.path(), &file).await;
    assert!(told.contains("no socket") && told.contains("remove the file"), "{told}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let told = refused(folder.path(), &folder.path().join("none/gw.sock")).await;
    assert!(told.contains("create its folder"), "{told}");
}

/// Serves a fake behind a unix socket.
fn relay(socket: PathBuf, up: &Fake) {
    let addr = up.addr();
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(addr).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
}

#[tokio::test]
async fn upstreams_are_dialled_over_sockets_with_a_path_behind() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("up.sock");
    let up = Fake::mcp(["x"]).start().await;
    relay(socket.clone(), &up);
    let url = format!("url = \"unix:{}:{}\"", socket.display(), "/mcp");
    let gateway = Setup::new().upstream("up", &url).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its list", |tools| tools == ["x"]).await;
    let seen = up.requests();
    assert!(seen.iter().all(|request| request.header("host") == Some("localhost")));
    std::fs::remove_file(&socket).unwrap();
    let gone = Setup::new()
        .upstream("up", &format!("protocol = \"jsonrpc\"\n{url}"))
        .rpc("\"*\" = \"up\"")
        .start()
        .await;
    assert_eq!(gone.http().post("/rpc", SUM).await.code(), -31004);
    gone.until_log("why", |log| log.count("there is no such socket") > 0).await;
}

#[tokio::test]
async fn event_streams_and_sessions_work_over_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gw.sock");
    let up = Fake::mcp(["x"]).start().await;
    let _gateway = Setup::new()
        .listen(&format!("[\"unix:{}\", \"127.0.0.1:0\"]", socket.display()))
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let opened = request(0, "initialize", &hello(NEWEST, &json!({})));
    let answer = http1(unix(&socket).await, post("/mcp", opened)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let session = answer.header("mcp-session-id").to_owned();
    let stream = http::Request::get("/mcp")
        .header("host", "localhost")
        .header("accept", "text/event-stream")
        .header("mcp-session-id", &session)
        .body(http_body_util::Full::<bytes::Bytes>::default())
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(unix(&socket).await))
            .await
            .unwrap();
    tokio::spawn(connection);
    let opened = patient("a stream", sender.send_request(stream)).await.unwrap();
    assert_eq!(opened.headers()["content-type"], "text/event-stream");
}

#[tokio::test]
async fn ipv6_is_listened_on_and_dialled() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // A machine without IPv6.
        return;
    }
    let up = Fake::plain().start().await;
    let far = Setup::new()
        .listen("[\"[::1]:0\"]")
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let url = format!("protocol = \"jsonrpc\"\nurl = \"{}\"", far.url("/rpc"));
    assert!(url.contains("http://[::1]:"), "{url}");
    let near = Setup::new().upstream("far", &url).rpc("\"*\" = \"far\"").start().await;
    assert_eq!(near.http().post("/rpc", SUM).await.json()["result"], json!(["a"]));
}
