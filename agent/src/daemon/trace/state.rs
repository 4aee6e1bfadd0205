//! A trace as users see it. In: what its object says, and what became of it. Out: the whole object, `status` included.

use std::time::SystemTime;

use podwire_datapath::object::API_VERSION;
use serde_json::{Map, Value, json};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It goes on.
    Running,
    /// It found out what became of the packet.
    Succeeded,
    /// It did not.
    Failed,
}

impl Phase {
    /// As Antrea writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// What is known of a trace.
#[derive(Clone, Debug)]
pub struct State {
    /// How far it is.
    pub phase: Phase,
    /// Why it failed.
    pub reason: Option<String>,
    /// When it began.
    pub started: SystemTime,
    /// The DSCP value of its packets, 0 before there is one.
    pub tag: u8,
    /// What each node saw.
    pub results: Vec<Value>,
    /// Packets as they were sent.
    pub captured: Vec<Value>,
}

impl State {
    /// It begins.
    pub fn new() -> Self {
        Self {
            phase: Phase::Running,
            reason: None,
            started: SystemTime::now(),
            tag: 0,
            results: Vec::new(),
            captured: Vec::new(),
        }
    }

    /// It found out nothing.
    pub fn failed(self, reason: String) -> Self {
        Self { phase: Phase::Failed, reason: Some(reason), ..self }
    }

    /// `status`.
    pub fn status(&self) -> Value {
        let mut status = Map::new();
        status.insert("phase".into(), self.phase.as_str().into());
        if let Some(reason) = &self.reason {
            status.insert("reason".into(), reason.clone().into());
        }
        let started = humantime::format_rfc3339_seconds(self.started);
        status.insert("startTime".into(), started.to_string().into());
        if self.tag != 0 {
            status.insert("dataplaneTag".into(), self.tag.into());
        }
        if !self.results.is_empty() {
            status.insert("results".into(), self.results.clone().into());
        }
        if let Some(first) = self.captured.first() {
            status.insert("capturedPacket".into(), first.clone());
        }
        if self.captured.len() > 1 {
            status.insert("capturedPackets".into(), self.captured.clone().into());
        }
        status.into()
    }
}

/// The whole object: what was written, and how it stands.
pub fn object(manifest: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": manifest.get("apiVersion").cloned().unwrap_or_else(|| API_VERSION.into()),
        "kind": "Traceflow",
        "metadata": manifest["metadata"],
        "spec": manifest["spec"],
        "status": status,
    })
}
