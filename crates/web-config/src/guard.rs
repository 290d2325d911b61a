//! The guard of a web server: the settings in effect, and how they follow the files.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::time::MissedTickBehavior;

use crate::client::ClientAuth;
use crate::credentials::Credentials;
use crate::error::Problem;
use crate::files::Fingerprint;
use crate::passwords::Passwords;
use crate::settings::Settings;
use crate::{Error, Event, Refusal, Summary};

/// How often [`Guard::watch`] compares the files with what was read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of times that a reload reads the files if they change in the meantime or do not match, and the
/// pause between reads.
const MAX_READS: usize = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// Applies a web-config file to connections and requests. Without a file: no TLS, no users, no headers, no limit.
pub struct Guard {
    file: Option<PathBuf>,
    on_event: Box<dyn Fn(Event<'_>) + Send + Sync>,
    settings: ArcSwap<Settings>,
    passwords: Arc<Passwords>,
    reload: Mutex<ReloadState>,
}

/// The files that the settings were read from, and the last refusal that was reported.
#[derive(Default)]
struct ReloadState {
    read: Option<Fingerprint>,
    refusal: Option<String>,
}

impl Guard {
    /// Reads and checks the file and all files that it names. `on_event` is called now if the file is accepted, and on
    /// each later event, from the thread that reloads.
    ///
    /// # Errors
    /// When a file cannot be read or is invalid.
    pub fn open(file: Option<&Path>, on_event: impl Fn(Event<'_>) + Send + Sync + 'static) -> Result<Self, Error> {
        let (settings, read) = match file {
            Some(file) => {
                let (settings, read) = Settings::read(file)?;
                on_event(Event::Accepted(&settings.summary));
                (settings, Some(read))
            }
            None => (Settings::default(), None),
        };
        let passwords = Passwords::new().map_err(|problem| Error::new(file.unwrap_or(Path::new("")), problem))?;
        Ok(Self {
            file: file.map(Path::to_owned),
            on_event: Box::new(on_event),
            settings: ArcSwap::from_pointee(settings),
            passwords: Arc::new(passwords),
            reload: Mutex::new(ReloadState { read, refusal: None }),
        })
    }

    /// Checks a file as [`Self::open`] does, and returns a summary of its settings.
    ///
    /// # Errors
    /// When a file cannot be read or is invalid.
    pub fn check(file: &Path) -> Result<Summary, Error> {
        Settings::read(file).map(|(settings, _)| settings.summary)
    }

    /// The TLS settings for the next connection. `None`: plain HTTP, for as long as the guard exists.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.settings.load().tls.clone()
    }

    /// The headers for every response.
    pub fn headers(&self) -> Arc<[(HeaderName, HeaderValue)]> {
        self.settings.load().headers.clone()
    }

    /// What is in effect.
    pub fn summary(&self) -> Summary {
        self.settings.load().summary.clone()
    }

    /// Whether every client has to authenticate, either with a password or with a certificate.
    pub fn demands_credentials(&self) -> bool {
        let settings = self.settings.load();
        let certificate = matches!(
            settings.summary.client_auth,
            Some(ClientAuth::RequireAnyClientCert | ClientAuth::RequireAndVerifyClientCert)
        );
        certificate || !settings.users.is_empty()
    }

    /// Decides from a request's headers whether to admit it. A password that has not been seen before is checked on a
    /// blocking thread; only one password is checked at a time.
    ///
    /// # Errors
    /// The [`Refusal`] to respond with.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.admit_from(headers, None).await
    }

    /// Decides as [`Self::admit`] does, for a client with this address. Passwords of different addresses are checked in
    /// turn, so that a client that sends many does not keep another one waiting. All requests without an address are one
    /// client.
    ///
    /// # Errors
    /// The [`Refusal`] to respond with.
    pub async fn admit_from(&self, headers: &HeaderMap, client: Option<IpAddr>) -> Result<(), Refusal> {
        let settings = self.settings.load_full();
        if settings.bucket.as_ref().is_some_and(|bucket| !bucket.take(Instant::now())) {
            return Err(Refusal::TooManyRequests);
        }
        if settings.users.is_empty() {
            return Ok(());
        }
        let given = Credentials::from_headers(headers).ok_or(Refusal::Unauthorized)?;
        let valid = self.passwords.verify(&settings.users, given, client).await.map_err(|_| Refusal::Busy)?;
        if valid { Ok(()) } else { Err(Refusal::Unauthorized) }
    }

    /// Reads the files again if one of them has changed. Returns whether the settings in effect were replaced. Blocks
    /// on disk reads. A refusal is reported as an event when it is new, and returned for as long as it lasts.
    ///
    /// # Errors
    /// When a file cannot be read or is invalid, or makes a change that needs a restart. The settings in effect
    /// do not change.
    pub fn reload(&self) -> Result<bool, Error> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut state = self.reload.lock();
        if state.read.as_ref().is_some_and(Fingerprint::is_current) {
            // The refused file may have been restored to the accepted one.
            state.refusal = None;
            return Ok(false);
        }
        match self.read_until_stable(file, state.refusal.as_deref()) {
            Ok((settings, read)) => {
                (self.on_event)(Event::Accepted(&settings.summary));
                self.settings.store(Arc::new(settings));
                *state = ReloadState { read: Some(read), refusal: None };
                Ok(true)
            }
            Err(error) => {
                let message = Some(error.to_string());
                if state.refusal != message {
                    (self.on_event)(Event::Refused(&error));
                    state.refusal = message;
                }
                Err(error)
            }
        }
    }

    /// Checks about once a second, forever, whether the files have changed, and reloads them if so. Returns at once
    /// for a guard without a file.
    pub async fn watch(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.file.is_some() {
            ticks.tick().await;
            let guard = self.clone();
            // `reload` has already reported any refusal.
            if let Err(panicked) = tokio::task::spawn_blocking(move || guard.reload().is_ok()).await {
                (self.on_event)(Event::Panicked(&panicked));
            }
        }
    }

    /// Reads until the files no longer change: while a certificate and its key are being replaced one after the other,
    /// they do not match. `known` is an earlier refusal: if the first read fails with it too, there is no second read.
    fn read_until_stable(&self, file: &Path, known: Option<&str>) -> Result<(Settings, Fingerprint), Error> {
        let mut refused = known.map(str::to_owned);
        for _ in 1..MAX_READS {
            match self.read_successor(file) {
                Ok((settings, read)) if read.is_current() => return Ok((settings, read)),
                Err(error) if refused.as_ref() == Some(&error.to_string()) => return Err(error),
                Err(error) => refused = Some(error.to_string()),
                Ok(_) => {}
            }
            std::thread::sleep(PAUSE);
        }
        self.read_successor(file)
    }

    /// Reads settings that may replace those in effect.
    fn read_successor(&self, file: &Path) -> Result<(Settings, Fingerprint), Error> {
        let (mut settings, read) = Settings::read(file)?;
        let current = self.settings.load();
        let switched = |what, to| Err(Error::new(file, Problem::Switched { what, to }));
        if settings.tls.is_some() && current.tls.is_none() {
            return switched("TLS", "on");
        }
        // A file that is being written is empty at first and then incomplete, which must not make the server accept
        // everyone.
        let mut proofs = current.required_proofs().into_iter().zip(settings.required_proofs());
        if let Some(((what, _), _)) = proofs.find(|((_, before), (_, after))| *before && !after) {
            return switched(what, "off");
        }
        // A limit that stays the same keeps its count.
        if let (Some(new), Some(old)) = (&mut settings.bucket, &current.bucket)
            && new.limit() == old.limit()
        {
            *new = old.clone();
        }
        Ok((settings, read))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("file", &self.file).finish_non_exhaustive()
    }
}
