//! Health checks. In: what went to a tool and what came back. Out: a tool that takes packets and gives none back
//! for longer than its policy allows counts as dead.
//!
//! A tool that blocks everything gives nothing back either, and is not dead. So podwire sends frames of its own
//! through the tool beside the pods' packets: Ethernet frames of EtherType 0x88B5 (IEEE 802, local experimental),
//! which bridges and inline inspectors pass on. What counts as life is either. A tool that passes on IP alone is
//! judged by the pods' packets; while it counts as dead it is tried with copies of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use podwire_core::abi::{Liveness, PolicyCounters, TripRow, limits};
use podwire_core::stage::link_trip_key;

use super::Datapath;
use crate::desired::Redirect;
use crate::error::{Context, Error};
use crate::maps::Row;
use crate::plan::{SessionKey, return_number};
use crate::status::sum_policy;
use crate::sys;

/// EtherType, source and destination (locally administered) of probes.
const ETHER_TYPE: u16 = 0x88b5;
const SOURCE: [u8; 6] = [0x02, b'p', b'w', 0, 0, 1];
const DESTINATION: [u8; 6] = [0x02, b'p', b'w', 0, 0, 2];
/// What it says.
const WORDS: &[u8; 13] = b"podwire probe";
/// Shortest Ethernet frame without its checksum, in bytes.
const FRAME: usize = 60;

/// A probe.
fn frame() -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..6].copy_from_slice(&DESTINATION);
    frame[6..12].copy_from_slice(&SOURCE);
    frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    frame[14..27].copy_from_slice(WORDS);
    frame
}

/// Whether a frame is a probe, to the byte.
#[cfg(feature = "xsk")]
pub(crate) fn is_probe(bytes: &[u8]) -> bool {
    bytes == frame()
}
/// Probes within a timeout.
const PROBES: u32 = 4;

/// What is known of a policy's tool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    redirected: u64,
    returned: u64,
    /// Since when packets are away and nothing came back.
    waiting: Option<Instant>,
    probed: Option<Instant>,
    silent: bool,
}

impl Health {
    /// Takes the counters' news at a time; says whether the tool is silent.
    fn observe(&mut self, counters: &PolicyCounters, now: Instant, timeout: Duration) -> bool {
        let returned = counters.returned_packets + counters.probes_returned;
        let came_back = returned != self.returned;
        let went = counters.redirected_packets != self.redirected;
        (self.redirected, self.returned) = (counters.redirected_packets, returned);
        if came_back {
            (self.waiting, self.silent) = (None, false);
        } else if self.waiting.is_none() && went {
            self.waiting = Some(now);
        } else if self.waiting.is_some_and(|since| now.duration_since(since) >= timeout) {
            self.silent = true;
        }
        self.silent
    }

    /// Whether a probe is due: only while it would tell something.
    fn wants_probe(&mut self, now: Instant, timeout: Duration) -> bool {
        let rested = self.probed.is_none_or(|last| now.duration_since(last) >= timeout / PROBES);
        let due = rested && (self.waiting.is_some() || self.silent);
        if due {
            self.probed = Some(now);
        }
        due
    }
}

impl Datapath {
    /// Whether a policy has a health check, so that [`check_health`](Self::check_health) has something to do.
    pub fn has_health_checks(&self) -> bool {
        self.desired.redirects.iter().any(|redirect| redirect.health_check.is_some())
    }

    /// Looks at the tools with a health check; to be called several times within the shortest timeout. Returns
    /// the policies whose tool has died or come back, with whether it is alive.
    ///
    /// # Errors
    /// `Kernel` when a map cannot be read or written.
    pub fn check_health(&mut self) -> Result<Vec<(String, bool)>, Error> {
        let now = Instant::now();
        let mut news = Vec::new();
        let redirects: Vec<Redirect> = self
            .desired
            .redirects
            .iter()
            .filter(|redirect| redirect.health_check.is_some())
            .cloned()
            .collect();
        let mut kept = HashMap::new();
        for redirect in redirects {
            let (name, timeout) = (redirect.name.clone(), redirect.health_check.unwrap_or_default());
            let Some(number) = self.policies.find(&name) else {
                continue;
            };
            let rows = self.maps.policy_counters.get(number)?;
            let counters = rows.iter().fold(PolicyCounters::default(), sum_policy);
            let mut health = self.health.get(&name).copied().unwrap_or(Health {
                redirected: counters.redirected_packets,
                returned: counters.returned_packets + counters.probes_returned,
                ..Health::default()
            });
            let before = health.silent;
            let silent = health.observe(&counters, now, timeout);
            if health.wants_probe(now, timeout) {
                self.probe(&redirect, number)?;
            }
            kept.insert(name.clone(), health);
            if silent != before {
                self.health.insert(name.clone(), health);
                self.tell_health(&redirect, silent)?;
                news.push((name, !silent));
            }
        }
        self.health = kept;
        Ok(news)
    }

    fn tell_health(&mut self, redirect: &Redirect, silent: bool) -> Result<(), Error> {
        let state = if silent { Liveness::Silent } else { Liveness::Live };
        match self.sessions.find(&SessionKey::of_redirect(redirect)) {
            Some(session) if self.live.get(&session) != Some(&Liveness::Dead) => {
                self.set_liveness(session, state)
            }
            _ => Ok(()),
        }
    }

    /// Sends a frame of podwire's own through the tool. Behind a tunnel only pods' packets are looked for.
    fn probe(&mut self, redirect: &Redirect, policy: u32) -> Result<(), Error> {
        let Some(session) = self.sessions.find(&SessionKey::of_redirect(redirect)) else {
            return Ok(());
        };
        let row = self.maps.sessions.get(self.generation.bank() * limits::SESSIONS + session)?;
        if row.ifindex == 0 {
            return Ok(());
        }
        let key = link_trip_key(SOURCE, DESTINATION, ETHER_TYPE, return_number(&redirect.return_port));
        let trip = TripRow { ifindex: TripRow::PROBE, policy, session, ..TripRow::default() };
        // Each time: the least used flows make room for others.
        self.maps.trips.insert(Row(key), Row(trip), 0).context(|| "announcing a probe".into())?;
        if let Err(error) = sys::send_frame(row.ifindex, &frame()) {
            tracing::debug!(policy = %redirect.name, %error, "the probe did not leave");
        }
        Ok(())
    }

    /// Whether a session's tool counts as silent.
    pub(super) fn is_silent(&self, key: &SessionKey) -> bool {
        self.desired.redirects.iter().any(|redirect| {
            SessionKey::of_redirect(redirect) == *key
                && self.health.get(&redirect.name).is_some_and(|health| health.silent)
        })
    }
}
