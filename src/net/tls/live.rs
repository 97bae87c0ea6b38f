//! What was made from files, made anew when they change.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::TlsError;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Something that is made from the contents of files.
pub trait Recipe: Send + Sync + 'static {
    /// What is made.
    type Made: Send + Sync + 'static;

    /// The files, each with the key of the configuration that names it.
    fn files(&self) -> Vec<(&'static str, &Path)>;

    /// Makes it from the contents of the files, in their order.
    ///
    /// # Errors
    /// When the contents are not what they should be, or do not fit each other.
    fn make(&self, texts: &[Vec<u8>]) -> Result<Self::Made, TlsError>;
}

/// What was made last.
#[derive(Debug)]
pub struct Live<R: Recipe> {
    recipe: R,
    made: ArcSwap<R::Made>,
    /// Of what `made` was made from.
    digest: Mutex<[u8; 32]>,
}

impl<R: Recipe> Live<R> {
    /// Reads the files and makes it for the first time.
    ///
    /// # Errors
    /// When a file cannot be read, or as [`Recipe::make`] says.
    pub fn new(recipe: R) -> Result<Arc<Self>, TlsError> {
        let (texts, digest) = read(&recipe)?;
        let made = ArcSwap::from_pointee(recipe.make(&texts)?);
        Ok(Arc::new(Self { recipe, made, digest: Mutex::new(digest) }))
    }

    /// What was made last.
    pub fn current(&self) -> Arc<R::Made> {
        self.made.load_full()
    }

    /// Looks at the files until `stop`. What was made stays when a change makes no sense; that is logged once. `what`
    /// is whose files they are, for the log.
    pub async fn keep_fresh(self: Arc<Self>, what: String, stop: CancellationToken) {
        if self.recipe.files().is_empty() {
            return;
        }
        let mut seen = Seen::Loaded;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let own = Arc::clone(&self);
            // Files may lie on a disk that is slow.
            let looked = tokio::task::spawn_blocking(move || own.look(&seen)).await;
            let Ok(now) = looked else { return };
            match &now {
                Seen::Refused(_, Some(error)) | Seen::Unreadable(Some(error)) => {
                    tracing::error!(of = what, key = error.key, %error, "changed certificates cannot be used; the former ones stay");
                }
                Seen::Taken => {
                    tracing::info!(of = what, "changed certificates are used from now on")
                }
                Seen::Loaded
                | Seen::Changing(_)
                | Seen::Refused(_, None)
                | Seen::Unreadable(None) => {}
            }
            seen = now;
        }
    }

    /// Looks once. Contents are taken when they were the same twice: files are seldom replaced all at once.
    fn look(&self, before: &Seen) -> Seen {
        let (texts, digest) = match read(&self.recipe) {
            Ok(read) => read,
            Err(error) => {
                let told = matches!(before, Seen::Unreadable(_));
                return Seen::Unreadable((!told).then_some(error));
            }
        };
        if digest == *self.digest.lock() {
            return Seen::Loaded;
        }
        match before {
            Seen::Refused(refused, _) if *refused == digest => Seen::Refused(digest, None),
            Seen::Changing(changed) if *changed == digest => match self.recipe.make(&texts) {
                Ok(made) => {
                    self.made.store(Arc::new(made));
                    *self.digest.lock() = digest;
                    Seen::Taken
                }
                Err(error) => Seen::Refused(digest, Some(error)),
            },
            _ => Seen::Changing(digest),
        }
    }
}

/// What the last look showed.
enum Seen {
    /// What is in use.
    Loaded,
    /// Something new, which was put in use.
    Taken,
    /// Something new, which may still be on its way.
    Changing([u8; 32]),
    /// Something that cannot be used; with the reason the first time.
    Refused([u8; 32], Option<TlsError>),
    /// Not all files; with the reason the first time.
    Unreadable(Option<TlsError>),
}

type Texts = (Vec<Vec<u8>>, [u8; 32]);

fn read<R: Recipe>(recipe: &R) -> Result<Texts, TlsError> {
    let mut digest = Sha256::new();
    let mut texts = Vec::new();
    for (key, path) in recipe.files() {
        let text = std::fs::read(path)
            .map_err(|error| TlsError::of_file(key, path, format!("cannot be read: {error}")))?;
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(&text);
        texts.push(text);
    }
    Ok((texts, digest.finalize().into()))
}
