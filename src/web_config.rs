//! What guards the web server: TLS, passwords, headers and a rate limit, by the file format of Prometheus'
//! exporter-toolkit, and read anew when a file changes.
//!
//! Invariant: settings are whole and right. A file that is wrong changes nothing: at the start the exporter does not
//! run, later the last right settings stay. While the server runs, TLS is neither switched on nor off, and no kind of proof
//! that is asked of clients (a password, a certificate, a name in it) is dropped.

mod bucket;
mod client;
pub(crate) mod credentials;
mod document;
mod files;
mod headers;
mod interval;
mod names;
mod passwords;
mod problem;
mod settings;
mod suites;
mod tls;
mod users;

pub use client::ClientAuth;
pub use problem::WebConfigError;
pub use settings::Summary;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rustls::ServerConfig;
use tokio::time::MissedTickBehavior;

use crate::faults::{Faults, Reason, Source};
use credentials::Credentials;
use files::Fingerprint;
use passwords::Passwords;
use problem::Problem;
use settings::Settings;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often the files are read, at most, where they change meanwhile or do not fit, and the pause in between.
const LOOKS: usize = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// What guards the web server. Without a file: no TLS, no users, no headers, no limit.
pub struct Guard {
    file: Option<PathBuf>,
    faults: Arc<Faults>,
    settings: ArcSwap<Settings>,
    passwords: Arc<Passwords>,
    state: Mutex<State>,
}

/// What the settings were read from, and the last refusal that was reported.
#[derive(Default)]
struct State {
    read: Option<Fingerprint>,
    refusal: Option<String>,
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No name and password, or wrong ones: 401.
    Unauthorized,
    /// More requests than the rate limit allows: 429.
    TooManyRequests,
    /// Too many passwords wait to be looked at: 503.
    Busy,
}

impl Refusal {
    /// The status to answer with.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The value of `WWW-Authenticate`, for the answer that asks for a password.
    pub fn challenge(self) -> Option<HeaderValue> {
        (self == Self::Unauthorized).then(|| HeaderValue::from_static("Basic"))
    }
}

impl Guard {
    /// Reads and checks the file and all files that it names.
    pub fn open(file: Option<&Path>, faults: Arc<Faults>) -> Result<Self, WebConfigError> {
        let (settings, read) = match file {
            Some(file) => {
                let (settings, read) = Settings::read(file)?;
                announce(&settings.summary);
                (settings, Some(read))
            }
            None => (Settings::default(), None),
        };
        let passwords =
            Passwords::new().map_err(|problem| WebConfigError::new(file.unwrap_or(Path::new("")), problem))?;
        Ok(Self {
            file: file.map(Path::to_owned),
            faults,
            settings: ArcSwap::from_pointee(settings),
            passwords: Arc::new(passwords),
            state: Mutex::new(State { read, refusal: None }),
        })
    }

    /// Checks a file as [`Self::open`] does, and says what it asks for.
    pub fn check(file: &Path) -> Result<Summary, WebConfigError> {
        Settings::read(file).map(|(settings, _)| settings.summary)
    }

    /// The TLS settings for the next connection. `None`: plain HTTP, which stays so as long as the guard lives.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.settings.load().tls.clone()
    }

    /// The headers for every response.
    pub fn headers(&self) -> Arc<[(HeaderName, HeaderValue)]> {
        self.settings.load().headers.clone()
    }

    /// What is in effect, in words.
    pub fn summary(&self) -> Summary {
        self.settings.load().summary.clone()
    }

    /// Lets a request in or says why not. A password that is not known yet is looked at on a blocking thread, one at
    /// a time.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let settings = self.settings.load_full();
        if settings.bucket.as_ref().is_some_and(|bucket| !bucket.take(Instant::now())) {
            return Err(Refusal::TooManyRequests);
        }
        if settings.users.len() == 0 {
            return Ok(());
        }
        let given = Credentials::from_headers(headers).ok_or(Refusal::Unauthorized)?;
        let right = self.passwords.are_right(&settings.users, given).await.map_err(|_| Refusal::Busy)?;
        if right { Ok(()) } else { Err(Refusal::Unauthorized) }
    }

    /// Reads the files anew where one of them changed; says whether other settings are in effect now. It blocks on
    /// the disk. A refusal is counted and logged when it is new, and returned as long as it lasts.
    pub fn reread(&self) -> Result<bool, WebConfigError> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.as_ref().is_some_and(Fingerprint::is_fresh) {
            // Also when a wrong file was put back to what it was.
            state.refusal = None;
            return Ok(false);
        }
        match self.read_whole(file, state.refusal.as_deref()) {
            Ok((settings, read)) => {
                announce(&settings.summary);
                self.settings.store(Arc::new(settings));
                *state = State { read: Some(read), refusal: None };
                Ok(true)
            }
            Err(error) => {
                let words = Some(error.to_string());
                if state.refusal != words {
                    self.faults.report(Source::WebConfig, error.reason(), None, &error);
                    state.refusal = words;
                }
                Err(error)
            }
        }
    }

    /// Reads until the files hold still: a certificate and a key that are replaced one after the other do not fit in
    /// between. `known` is a refusal that need not be looked at twice.
    fn read_whole(&self, file: &Path, known: Option<&str>) -> Result<(Settings, Fingerprint), WebConfigError> {
        let mut refused = known.map(str::to_owned);
        for _ in 1..LOOKS {
            match self.read_once(file) {
                Ok((settings, read)) if read.is_fresh() => return Ok((settings, read)),
                Err(error) if refused.as_ref() == Some(&error.to_string()) => return Err(error),
                Err(error) => refused = Some(error.to_string()),
                Ok(_) => {}
            }
            std::thread::sleep(PAUSE);
        }
        self.read_once(file)
    }

    fn read_once(&self, file: &Path) -> Result<(Settings, Fingerprint), WebConfigError> {
        let (settings, read) = Settings::read(file)?;
        Ok((self.succeed(file, settings)?, read))
    }

    /// The settings as successors of those in effect.
    fn succeed(&self, file: &Path, mut settings: Settings) -> Result<Settings, WebConfigError> {
        let present = self.settings.load();
        let switched = |what, to| Err(WebConfigError::new(file, Problem::Switched { what, to }));
        if settings.tls.is_some() && present.tls.is_none() {
            return switched("TLS", "on");
        }
        // A file that is being written is empty, then cut, for a moment: nobody gets in by that.
        let demands = present.demands().into_iter().zip(settings.demands());
        if let Some(((what, _), _)) = demands.into_iter().find(|((_, before), (_, after))| *before && !after) {
            return switched(what, "off");
        }
        // A limit that stays the same goes on counting.
        if let (Some(new), Some(old)) = (&mut settings.bucket, &present.bucket)
            && new.limit() == old.limit()
        {
            *new = old.clone();
        }
        Ok(settings)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Rereads the guard's files for ever, about once a second. Ends at once where the guard has no file.
pub async fn watch(guard: Arc<Guard>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while guard.file.is_some() {
        looks.tick().await;
        let looking = guard.clone();
        // A refusal was reported by the guard itself.
        if let Err(died) = tokio::task::spawn_blocking(move || looking.reread().is_ok()).await {
            guard.faults.report(Source::WebConfig, Reason::Panicked, None, &died);
        }
    }
}

fn announce(summary: &Summary) {
    tracing::info!(settings = %summary, "web-config read");
    for note in &summary.notes {
        tracing::warn!(note, "web-config");
    }
}
