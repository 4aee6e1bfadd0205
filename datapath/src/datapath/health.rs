//! Health checks. In: what went to a tool and what came back. Out: a tool that takes packets and gives none back
//! for longer than its policy allows counts as dead; now and then it is tried with a copy, until one comes back.

use std::collections::HashMap;
use std::time::Instant;

use podwire_core::abi::{Liveness, PolicyCounters};

use super::Datapath;
use crate::error::Error;
use crate::plan::SessionKey;
use crate::status::sum_policy;

/// What is known of a policy's tool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    redirected: u64,
    returned: u64,
    /// Since when packets are away and none came back.
    waiting: Option<Instant>,
    silent: bool,
}

impl Health {
    /// Takes the counters' news at a time; says whether the tool is silent.
    fn observe(&mut self, counters: &PolicyCounters, now: Instant, timeout: std::time::Duration) -> bool {
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
        let redirects: Vec<_> = self
            .desired
            .redirects
            .iter()
            .filter_map(|redirect| {
                Some((redirect.name.clone(), SessionKey::of_redirect(redirect), redirect.health_check?))
            })
            .collect();
        let mut kept = HashMap::new();
        for (name, key, timeout) in redirects {
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
            kept.insert(name.clone(), health);
            if silent != before {
                self.health.insert(name.clone(), health);
                if let Some(session) = self.sessions.find(&key)
                    && self.live.get(&session) != Some(&Liveness::Dead)
                {
                    self.set_liveness(session, if silent { Liveness::Silent } else { Liveness::Live })?;
                }
                news.push((name, !silent));
            }
        }
        self.health = kept;
        Ok(news)
    }

    /// Whether a session's tool counts as silent.
    pub(super) fn is_silent(&self, key: &SessionKey) -> bool {
        self.desired.redirects.iter().any(|redirect| {
            SessionKey::of_redirect(redirect) == *key
                && self.health.get(&redirect.name).is_some_and(|health| health.silent)
        })
    }
}
