//! Where mirrored frames go.

use super::account::Account;
use super::frame::Frame;
use super::session::Session;
use super::source::Losses;
use crate::error::Error;

/// Takes frames. It runs on the receiving thread: what may block belongs behind a queue, as [`super::Background`] is.
pub trait Sink {
    /// A frame of a session, in the order in which the collector releases them.
    fn frame(&mut self, session: &Session, frame: &Frame<'_>);

    /// What is known of a session, from time to time and at its end.
    fn account(&mut self, _session: &Session, _account: &Account) {}

    /// A session has ended; its last account was told just now.
    fn end(&mut self, _session: &Session) {}

    /// Hands on what is kept back; called a few times a second.
    fn flush(&mut self) {}

    /// Frames that were given to it and lost, by reason.
    fn losses(&self) -> Losses {
        Losses::default()
    }

    /// The end: everything is written when it returns.
    ///
    /// # Errors
    /// The first thing that went wrong on the way, or at the end.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Counts only.
impl Sink for () {
    fn frame(&mut self, _session: &Session, _frame: &Frame<'_>) {}
}

/// One after the other.
impl<S: Sink> Sink for Vec<S> {
    fn frame(&mut self, session: &Session, frame: &Frame<'_>) {
        self.iter_mut().for_each(|sink| sink.frame(session, frame));
    }

    fn account(&mut self, session: &Session, account: &Account) {
        self.iter_mut().for_each(|sink| sink.account(session, account));
    }

    fn end(&mut self, session: &Session) {
        self.iter_mut().for_each(|sink| sink.end(session));
    }

    fn flush(&mut self) {
        self.iter_mut().for_each(|sink| sink.flush());
    }

    fn losses(&self) -> Losses {
        Losses(self.iter().flat_map(|sink| sink.losses().0).collect())
    }

    fn finish(&mut self) -> Result<(), Error> {
        // All of them end, whatever becomes of the first.
        let ends: Vec<_> = self.iter_mut().map(Sink::finish).collect();
        ends.into_iter().collect()
    }
}

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn frame(&mut self, session: &Session, frame: &Frame<'_>) {
        (**self).frame(session, frame);
    }

    fn account(&mut self, session: &Session, account: &Account) {
        (**self).account(session, account);
    }

    fn end(&mut self, session: &Session) {
        (**self).end(session);
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn losses(&self) -> Losses {
        (**self).losses()
    }

    fn finish(&mut self) -> Result<(), Error> {
        (**self).finish()
    }
}

/// A function as a sink.
#[derive(Debug)]
pub struct Callback<F>(pub F);

impl<F: FnMut(&Session, &Frame<'_>)> Sink for Callback<F> {
    fn frame(&mut self, session: &Session, frame: &Frame<'_>) {
        (self.0)(session, frame);
    }
}
