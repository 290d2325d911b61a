//! The signals that `run` receives: which of them the command gets, and which of them end the wait.
//!
//! Invariant: the command never gets a signal from the terminal twice. The terminal sends it to the whole foreground
//! process group, of which the command is a member; a signal from elsewhere reaches only this process.

use std::fs::File;
use std::io;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{getpgrp, getpid, tcgetpgrp};
use procfs::process::Process;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The signals that are handled. SIGTTIN and SIGTTOU keep their default effect: they stop this process just as they
/// stop the command.
const HANDLED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals as they arrive.
#[derive(Debug)]
pub(super) struct Signals {
    arriving: UnboundedReceiver<Signal>,
}

impl Signals {
    /// Installs the handlers. Call it within a runtime, before the command is started. A signal that is ignored stays
    /// ignored, here and in the command, because `nohup` depends on that.
    pub(super) fn install() -> io::Result<Self> {
        let ignored = Process::myself().and_then(|process| process.status()).map_or(0, |status| status.sigign);
        let (sender, arriving) = unbounded_channel();
        for handled in HANDLED {
            if ignored & (1 << (handled as u64 - 1)) == 0 {
                follow(handled, SignalKind::from_raw(handled as i32), sender.clone())?;
            }
        }
        // Wakes the waiting task when a child ends.
        follow(Signal::SIGCHLD, SignalKind::child(), sender)?;
        Ok(Self { arriving })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        match self.arriving.recv().await {
            Some(signal) => signal,
            // The senders live as long as the runtime.
            None => std::future::pending().await,
        }
    }
}

fn follow(which: Signal, kind: SignalKind, sender: UnboundedSender<Signal>) -> io::Result<()> {
    let mut arrivals = signal(kind)?;
    tokio::spawn(async move {
        while arrivals.recv().await.is_some() {
            if sender.send(which).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Whether the signal asks a process to end.
pub(super) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM)
}

/// Whether this process must forward the signal to the command.
pub(super) fn is_forwarded(signal: Signal) -> bool {
    match signal {
        Signal::SIGCHLD => false,
        Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTSTP => !is_in_foreground(),
        _ => true,
    }
}

/// Stops this process after SIGTSTP, because the signal itself no longer stops it once a handler is installed. SIGCONT
/// continues the process.
pub(super) fn stop() {
    if let Err(error) = kill(getpid(), Signal::SIGSTOP) {
        tracing::debug!(%error, "not stopped");
    }
}

/// Whether this process is in the foreground process group of a terminal, so that keys send signals to its whole group.
fn is_in_foreground() -> bool {
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| tcgetpgrp(terminal).ok());
    foreground == Some(getpgrp())
}
