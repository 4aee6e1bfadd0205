//! What is shown, written by a thread of its own. In: texts. Out: standard output. A reader that takes none must not
//! keep the collector from its rounds: while one text waits, no other is made.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// See the module.
pub(super) struct Printer {
    texts: Option<Sender<String>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    busy: AtomicBool,
    failure: Mutex<Option<io::Error>>,
}

impl Printer {
    /// Starts the thread; `to_stderr` where standard output is taken.
    pub(super) fn start(to_stderr: bool) -> io::Result<Self> {
        let (texts, queue) = channel();
        let state = Arc::new(State::default());
        let shared = state.clone();
        let thread = std::thread::Builder::new()
            .name("show".into())
            .spawn(move || work(&queue, &shared, to_stderr))?;
        Ok(Self { texts: Some(texts), state, thread: Some(thread) })
    }

    /// Whether the last text is written.
    pub(super) fn is_ready(&self) -> bool {
        !self.state.busy.load(Ordering::Acquire)
    }

    /// Has a text written.
    ///
    /// # Errors
    /// An earlier one could not be.
    pub(super) fn print(&self, text: String) -> io::Result<()> {
        self.failure()?;
        self.state.busy.store(true, Ordering::Release);
        if let Some(texts) = &self.texts {
            let _ = texts.send(text);
        }
        Ok(())
    }

    /// Has the last text written, however long that takes.
    ///
    /// # Errors
    /// It could not be.
    pub(super) fn finish(&mut self, text: String) -> io::Result<()> {
        self.print(text)?;
        self.texts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.failure()
    }

    fn failure(&self) -> io::Result<()> {
        let failure = self.state.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }
}

fn work(queue: &Receiver<String>, state: &State, to_stderr: bool) {
    for text in queue {
        let written = if to_stderr {
            anstream::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = anstream::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        if let Err(error) = written {
            *state.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        state.busy.store(false, Ordering::Release);
    }
}
