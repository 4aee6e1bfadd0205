//! What changed of late. In: states before and after. Out: a line per change, kept for `podwire get events` and
//! written to the log.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde_json::{Value, json};

/// Events that are kept.
const KEPT: usize = 1000;

/// A change of an object's state.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub time: SystemTime,
    /// `Kind/name`.
    pub object: String,
    /// Whether something got worse.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// One line.
    pub message: String,
}

impl Event {
    /// As an object for the command line.
    pub fn to_json(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.object},
            "time": humantime::format_rfc3339_millis(self.time).to_string(),
            "type": if self.warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "object": self.object,
            "message": self.message,
        })
    }
}

/// The last changes, and who is told of each.
pub struct Events {
    kept: VecDeque<Event>,
    tell: Box<dyn Fn(&Event) + Send>,
}

impl Events {
    /// None yet.
    pub fn new(tell: impl Fn(&Event) + Send + 'static) -> Self {
        Self { kept: VecDeque::new(), tell: Box::new(tell) }
    }

    /// The oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.kept.iter()
    }
}

/// Notes a change.
pub fn note(events: &mut Events, object: String, warning: bool, reason: &'static str, message: String) {
    if warning {
        tracing::warn!(%object, %reason, "{message}");
    } else {
        tracing::info!(%object, %reason, "{message}");
    }
    if events.kept.len() == KEPT {
        events.kept.pop_front();
    }
    let event = Event { time: SystemTime::now(), object, warning, reason, message };
    (events.tell)(&event);
    events.kept.push_back(event);
}
