//! The model's counters beside the kernel's.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use podwire_datapath::Counters;
use podwire_datapath::core::abi::{Direction, EndpointCounters, GuardCounters, Reason, SessionCounters};

/// All counters, as [`Datapath::counters`](podwire_datapath::Datapath::counters) gives them.
#[derive(Clone, Debug)]
pub struct Books {
    pub endpoints: BTreeMap<(String, Direction), EndpointCounters>,
    pub sessions: BTreeMap<u32, SessionCounters>,
    pub reasons: BTreeMap<Reason, u64>,
    /// By endpoint.
    pub guards: BTreeMap<String, GuardCounters>,
}

impl Books {
    pub fn new(counters: Counters) -> Self {
        let endpoints = counters.endpoints.into_iter();
        let sessions = counters.sessions.into_iter();
        Self {
            guards: counters.guards.into_iter().collect(),
            endpoints: endpoints.map(|(name, direction, row)| ((name, direction), row)).collect(),
            sessions: sessions.map(|(session, _, row)| (session, row)).collect(),
            // The kernel may say a word of its own on the mirror device.
            reasons: counters.reasons.into_iter().filter(|(reason, _)| *reason != Reason::Stray).collect(),
        }
    }

    /// Adds packets to a reason.
    pub fn reason(&mut self, reason: Reason, packets: u64) {
        *self.reasons.entry(reason).or_default() += packets;
    }

    /// Fails with what differs from what was `counted`.
    pub fn agree(&self, counted: &Self) -> Result<()> {
        for (name, row) in &self.endpoints {
            let other = counted.endpoints.get(name);
            ensure!(other == Some(row), "{name:?}: the model {row:?}, the kernel {other:?}");
        }
        for (name, row) in &self.guards {
            let other = counted.guards.get(name);
            ensure!(other == Some(row), "guard of {name}: the model {row:?}, the kernel {other:?}");
        }
        for (session, row) in &self.sessions {
            let other = counted.sessions.get(session);
            ensure!(other == Some(row), "session {session}: the model {row:?}, the kernel {other:?}");
        }
        ensure!(
            self.reasons == counted.reasons,
            "the model {:?}, the kernel {:?}",
            self.reasons,
            counted.reasons
        );
        Ok(())
    }
}
