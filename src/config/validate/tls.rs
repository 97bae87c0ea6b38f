//! `tls` of `[server]` and of `[upstreams.NAME]`.

use super::{Checks, KeyPath};
use crate::config::load::Files;
use crate::config::{ServerTls, UpstreamConfig};
use crate::net::Place;
use crate::net::tls::{Live, Recipe};

impl Checks<'_> {
    pub(super) fn server_tls(&mut self, tls: &ServerTls) {
        let table = KeyPath::root().key("server");
        let at = table.key("tls");
        if self.document.is_damaged(&at) {
            return;
        }
        self.made(tls.recipe(), &at);
        let tcp = |place: &Place| matches!(place, Place::Tcp(_));
        if !self.config.server.listen.0.iter().any(tcp) {
            let message = "`tls` in [server] has no effect: unix sockets are served without";
            self.warn(at, message);
        }
    }

    pub(super) fn upstream_tls(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        let at = table.key("tls");
        let tls = &upstream.tls;
        let speaks = upstream
            .url
            .iter()
            .chain(&upstream.endpoints)
            .any(|url| matches!(url.scheme(), "https" | "wss"));
        if !speaks {
            for key in ["ca", "cert", "key", "server_name", "insecure"] {
                let at = at.key(key);
                if self.document.has(&at) {
                    let section = at.section();
                    let text = format!(
                        "`{key}`{section} is for `https:`, and its `url` is not; it has no effect"
                    );
                    self.warn(at, text);
                }
            }
            return;
        }
        match (&tls.cert, &tls.key) {
            (Some(_), None) => {
                self.wrong(at.key("cert"), "needs `key` beside it, the file of its private key");
                return;
            }
            (None, Some(_)) => {
                self.wrong(at.key("key"), "needs `cert` beside it, the file of the certificate");
                return;
            }
            _ => {}
        }
        if let Some(name) = &tls.server_name
            && rustls::pki_types::ServerName::try_from(name.as_str()).is_err()
        {
            self.wrong(at.key("server_name"), "is no host name or address");
        }
        if tls.insecure {
            let section = at.section();
            let mut text = format!(
                "`insecure`{section} believes any certificate: whoever sits between can read and \
                 change everything; name the authority with `ca` instead"
            );
            if tls.ca.is_some() {
                text.push_str(" (and take `insecure` out, it makes `ca` mean nothing)");
            }
            self.warn(at.key("insecure"), text);
        }
        if tls.ca.is_some() || tls.cert.is_some() {
            self.made(tls.recipe(Vec::new()), &at);
        }
    }

    /// Whether it can be made from its files, as far as those are to be read.
    fn made(&mut self, recipe: impl Recipe, at: &KeyPath) {
        if self.files == Files::Unread {
            return;
        }
        if let Err(error) = Live::new(recipe) {
            let at = at.key(error.key);
            let message = format!("`{}`{} names {error}", error.key, at.section());
            self.error(at, message);
        }
    }
}
