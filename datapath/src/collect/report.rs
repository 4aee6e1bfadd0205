//! What a collector has counted, all of it.

use std::collections::BTreeMap;
use std::fmt;

use podwire_core::wire::decap::DecapError;
use podwire_core::wire::{Layer, Problem, WireError};

use super::account::Account;
use super::collector::Totals;
use super::reassembly;
use super::session::Session;
use super::talkers::Talker;

/// A moment of a collector.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Packets, by what became of them.
    pub totals: Totals,
    /// The sum of sessions that made room for others.
    pub gone: Account,
    /// Packets that cannot be read, by reason: at most a few hundred reasons.
    pub undecodable: BTreeMap<String, u64>,
    /// Fragments, by what became of them.
    pub fragments: reassembly::Books,
    /// Sessions that are known.
    pub sessions: Vec<SessionReport>,
}

/// A session.
#[derive(Clone, Debug)]
pub struct SessionReport {
    /// Which one.
    pub session: Session,
    /// What was counted of it.
    pub account: Account,
    /// Its heaviest talkers.
    pub talkers: Vec<Talker>,
}

impl Report {
    /// The sum over all sessions, those that are gone too.
    pub fn sum(&self) -> Account {
        let mut sum = self.gone;
        self.sessions.iter().for_each(|one| sum.add(&one.account));
        sum
    }
}

/// A reason without the numbers of one packet, so that there are few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    Control,
    /// The option is chosen by the sender: telling them apart would be without bound.
    CriticalOption,
    FragmentAgain,
    Wire(Layer, Problem),
}

impl Reason {
    pub(super) fn of(error: &DecapError) -> Option<Self> {
        match error {
            DecapError::NotATunnel => None,
            DecapError::OuterFragment(_) => Some(Self::FragmentAgain),
            DecapError::Control => Some(Self::Control),
            DecapError::CriticalOption { .. } => Some(Self::CriticalOption),
            DecapError::Wire(WireError { layer, problem, .. }) => Some(Self::Wire(*layer, *problem)),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("GENEVE: control packet"),
            Self::CriticalOption => f.write_str("GENEVE: critical option is not known"),
            Self::FragmentAgain => f.write_str("fragment of a fragment"),
            Self::Wire(layer, problem) => write!(f, "{layer}: {}", words(*problem)),
        }
    }
}

fn words(problem: Problem) -> &'static str {
    match problem {
        Problem::Truncated => "cut short",
        Problem::Unsupported => "not a known version",
        Problem::LengthTooSmall => "length too small",
        Problem::LengthTooLarge => "length too large",
        Problem::Checksum => "wrong checksum",
        _ => "cannot be read",
    }
}
