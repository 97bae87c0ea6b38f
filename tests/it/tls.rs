//! TLS on both sides: certificates asked for, shown, refused, and replaced while the gateway runs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::client::patient;
use crate::fake::Fake;
use crate::gateway::{Gateway, Setup, run};
use crate::wire::{Tls, http1, post};

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate and key for a name, for either side.
    pub fn sign(&self, name: &str) -> (String, String) {
        self.sign_until(name, 2096)
    }

    fn sign_until(&self, name: &str, year: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Writes `NAME.pem` and `NAME.key`.
pub fn write(folder: &Path, name: &str, (cert, key): &(String, String)) {
    std::fs::write(folder.join(format!("{name}.pem")), cert).unwrap();
    std::fs::write(folder.join(format!("{name}.key")), key).unwrap();
}

const ECHO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":["a"]}"#;

/// What a client gets, or why there is no connection.
async fn ask(gateway: &Gateway, tls: &Tls) -> Result<u16, std::io::Error> {
    let mut line = tls.connect(gateway.addr()).await?;
    if tls.identity.is_none() {
        // With TLS 1.3 a refusal comes behind the handshake.
        let mut one = [0];
        let read = tokio::time::timeout(Duration::from_millis(300), line.read(&mut one)).await;
        if let Ok(read) = read {
            read?;
        }
    }
    Ok(http1(line, post("/rpc", ECHO)).await.status)
}

#[tokio::test]
async fn clients_are_served_over_tls_and_new_certificates_without_a_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tls", &old.sign("localhost"));
    let up = Fake::plain().start().await;
    let file = |end: &str| folder.path().join(end).display().to_string();
    let gateway = Setup::new()
        .server(&format!(
            "tls = {{ cert = \"{}\", key = \"{}\" }}",
            file("tls.pem"),
            file("tls.key")
        ))
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let before = Tls { ca: old.pem.clone(), ..Tls::default() };
    let after = Tls { ca: new.pem.clone(), ..Tls::default() };
    assert_eq!(ask(&gateway, &before).await.unwrap(), 200);
    assert!(ask(&gateway, &after).await.is_err(), "of another authority");
    let plain = gateway.http().post("/rpc", ECHO).await;
    assert_eq!((plain.status, plain.text()), (400, "this address is served over https:\n"));

    // Half of a change makes no sense, and changes nothing.
    let (cert, key) = new.sign("localhost");
    std::fs::write(folder.path().join("tls.pem"), cert).unwrap();
    gateway
        .until_log("the refusal", |log| log.count("is not the key of the certificate") == 1)
        .await;
    assert_eq!(ask(&gateway, &before).await.unwrap(), 200, "the old one stays");
    let held = before.connect(gateway.addr()).await.unwrap();
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    gateway.until_log("the change", |log| log.count("changed certificates are used") == 1).await;
    assert_eq!(ask(&gateway, &after).await.unwrap(), 200, "a new handshake");
    assert!(ask(&gateway, &before).await.is_err());
    assert_eq!(http1(held, post("/rpc", ECHO)).await.status, 200, "what is open goes on");
}

#[tokio::test]
async fn only_clients_with_a_certificate_are_served_where_one_is_asked_for() {
    let (ca, clients, others) =
        (Authority::new("servers"), Authority::new("clients"), Authority::new("others"));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tls", &ca.sign("localhost"));
    std::fs::write(folder.path().join("ca.pem"), &clients.pem).unwrap();
    let up = Fake::plain().start().await;
    let path = folder.path().display();
    let gateway = Setup::new()
        .server(&format!(
            "tls = {{ cert = \"{path}/tls.pem\", key = \"{path}/tls.key\", client_ca = \"{path}/ca.pem\" }}\n\
             header_timeout = \"1s\""
        ))
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let tls = |identity| Tls { ca: ca.pem.clone(), identity, ..Tls::default() };
    // Who begins nothing is not waited for for ever, and keeps nobody waiting.
    let mut silent = TcpStream::connect(gateway.addr()).await.unwrap();
    assert_eq!(ask(&gateway, &tls(Some(clients.sign("me")))).await.unwrap(), 200);
    let refused = ask(&gateway, &tls(None)).await.unwrap_err().to_string();
    assert!(refused.contains("CertificateRequired"), "{refused}");
    let foreign = tls(Some(others.sign("me"))).connect(gateway.addr()).await;
    let told = match foreign {
        Err(error) => Err(error),
        Ok(mut line) => line.read(&mut [0]).await,
    };
    assert!(told.is_err(), "{told:?}");
    assert_eq!(up.count("echo"), 1);
    // Over HTTP/2 the refusal meets a connection that others may share.
    let port = gateway.addr().port();
    let url = format!("protocol = \"jsonrpc\"\nurl = \"https://localhost:{port}/rpc\"");
    std::fs::write(folder.path().join("servers.pem"), &ca.pem).unwrap();
    let url = format!("{url}\ntls = {{ ca = \"{path}/servers.pem\" }}");
    let near = Setup::new().upstream("far", &url).rpc("\"*\" = \"far\"").start().await;
    assert_eq!(near.http().post("/rpc", ECHO).await.code(), -31004);
    let ended = patient("the end of a silent connection", silent.read(&mut [0])).await;
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
}

/// Serves a fake behind TLS; with `clients`, only those with a certificate of that authority.
pub async fn tls_in_front(
    up: &Fake,
    (cert, key): &(String, String),
    clients: Option<&str>,
    alpn: &[&str],
) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, far) = (listener.local_addr().unwrap(), up.addr());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut near) = acceptor.accept(near).await else { return };
                let mut far = TcpStream::connect(far).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    addr
}

#[tokio::test]
async fn c133_upstreams_are_believed_by_authority_name_and_time_and_asked_with_a_certificate() {
    let (ca, own) = (Authority::new("servers"), Authority::new("clients"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    std::fs::write(folder.path().join("ca.pem"), &ca.pem).unwrap();
    write(folder.path(), "me", &own.sign("me"));
    let up = Fake::plain().start().await;
    let good = ca.sign("localhost");
    let asking = tls_in_front(&up, &good, Some(&own.pem), &["http/1.1"]).await;
    let plain = tls_in_front(&up, &good, None, &[]).await;
    let old = tls_in_front(&up, &ca.sign_until("localhost", 2020), None, &[]).await;
    let foreign = tls_in_front(&up, &own.sign("localhost"), None, &[]).await;
    let h2_only = tls_in_front(&up, &good, None, &["nothing"]).await;
    let with_ca = format!("ca = \"{path}/ca.pem\"");
    let me = format!("{with_ca}, cert = \"{path}/me.pem\", key = \"{path}/me.key\"");
    let cases: [(&str, SocketAddr, String, Option<&str>); 8] = [
        ("known", plain, with_ca.clone(), None),
        ("shown", asking, me, None),
        ("any", foreign, "insecure = true".into(), None),
        ("unshown", asking, with_ca.clone(), Some("it wants a client certificate")),
        ("expired", old, with_ca.clone(), Some("has expired")),
        ("foreign", foreign, with_ca.clone(), Some("authority that is not trusted")),
        ("named", plain, format!("{with_ca}, server_name = \"other\""), Some("another name")),
        ("alpn", h2_only, with_ca, Some("no version of HTTP")),
    ];
    let mut setup = Setup::new();
    let mut methods = String::new();
    for (name, addr, tls, _) in &cases {
        let port = addr.port();
        setup = setup.upstream(
            name,
            &format!(
                "protocol = \"jsonrpc\"\nurl = \"https://localhost:{port}/\"\ntls = {{ {tls} }}"
            ),
        );
        methods.push_str(&format!("\"{name}\" = \"{name}\","));
    }
    let plain_text = format!(
        "protocol = \"jsonrpc\"\nurl = \"https://{}/\"\ntls = {{ insecure = true }}",
        up.addr()
    );
    let gateway = setup
        .upstream("text", &plain_text)
        .rpc(&format!("{methods} \"text\" = \"text\""))
        .start()
        .await;
    let wrong = ("text", up.addr(), String::new(), Some("does it speak TLS there?"));
    for (name, _, _, why) in cases.into_iter().chain([wrong]) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}","params":[1]}}"#);
        let reply = gateway.http().post("/rpc", body).await;
        match why {
            None => assert_eq!(reply.json()["result"], serde_json::json!([1]), "{name}"),
            Some(why) => {
                assert_eq!((reply.status, reply.code()), (502, -31004), "{name}: {}", reply.text());
                assert!(!reply.text().contains(why), "{name}: for the log alone");
                gateway.until_log(name, |log| log.count(why) > 0).await;
            }
        }
    }
    assert_eq!(gateway.output().count("believes any certificate"), 2, "a warning each");
}

#[tokio::test]
async fn changed_files_of_an_upstream_are_used_for_its_next_connection() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, &old.pem).unwrap();
    let up = Fake::plain().start().await;
    let addr = tls_in_front(&up, &new.sign("127.0.0.1"), None, &[]).await;
    let gateway = Setup::new()
        .upstream(
            "node",
            &format!(
                "protocol = \"jsonrpc\"\nurl = \"https://{addr}/\"\ntls = {{ ca = \"{}\" }}",
                ca.display()
            ),
        )
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    assert_eq!(gateway.http().post("/rpc", ECHO).await.code(), -31004);
    std::fs::write(&ca, "rubbish").unwrap();
    gateway.until_log("the refusal", |log| log.count("holds no certificate") == 1).await;
    std::fs::write(&ca, &new.pem).unwrap();
    gateway.until_log("the change", |log| log.count("changed certificates are used") == 1).await;
    assert_eq!(gateway.http().post("/rpc", ECHO).await.status, 200);
}

#[tokio::test]
async fn wrong_files_are_found_by_check_with_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new("a");
    let (one, other) = (ca.sign("localhost"), ca.sign("localhost"));
    write(folder.path(), "tls", &(one.0, other.1));
    let file = folder.path().join("t.toml");
    let text = "[server]\ntls = { cert = \"tls.pem\", key = \"tls.key\", client_ca = \"none.pem\" }\n\
                [upstreams.a]\nurl = \"https://localhost/\"\n[upstreams.a.tls]\nca = \"tls.key\"\n";
    std::fs::write(&file, text).unwrap();
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(2));
    for told in [
        "`client_ca` in [server.tls] names",
        "none.pem: cannot be read",
        "t.toml:6:1: `ca`",
        "holds no certificate",
    ] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    std::fs::write(&file, text.replace(", client_ca = \"none.pem\"", "")).unwrap();
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert!(ended.stderr.contains("is not the key of the certificate"), "{}", ended.stderr);
}

#[tokio::test]
async fn websockets_go_over_tls_and_sockets_too() {
    let ca = Authority::new("ca");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    write(folder.path(), "tls", &ca.sign("localhost"));
    std::fs::write(folder.path().join("ca.pem"), &ca.pem).unwrap();
    let up = Fake::plain().start().await;
    let far = Setup::new()
        .listen(&format!("[\"127.0.0.1:0\", \"unix:{path}/far.sock\"]"))
        .server(&format!("tls = {{ cert = \"{path}/tls.pem\", key = \"{path}/tls.key\" }}"))
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let port = far.addr().port();
    let socket = format!("{path}/far.sock").replace('/', "%2F");
    let over = |url: &str| format!("protocol = \"jsonrpc\"\nurl = \"{url}\"\n");
    let tls = format!("tls = {{ ca = \"{path}/ca.pem\" }}");
    let near = Setup::new()
        .upstream("tls", &(over(&format!("wss://localhost:{port}/rpc")) + &tls))
        .upstream("socket", &over(&format!("ws+unix://{socket}/rpc")))
        .rpc("\"tls\" = \"tls\", \"socket\" = \"socket\"")
        .start()
        .await;
    for method in ["tls", "socket"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":[1]}}"#);
        let reply = near.http().post("/rpc", body).await;
        assert_eq!(reply.json()["result"], serde_json::json!([1]), "{method}: {}", reply.text());
        assert_eq!(up.count(method), 1);
    }
}
