//! What the command line and the agent say to each other of a capture: the request, and the stream of frames.

mod stream;

use serde::{Deserialize, Serialize};

pub use stream::{Decoder, FrameHead, Message, write_frame, write_said};

/// What an agent is asked to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    /// At which pods.
    pub pods: Vec<PodRequest>,
    /// Which packets: the words of `podwire traceflow -f`; empty for all.
    #[serde(default)]
    pub flow: String,
    /// Relative to the pod.
    #[serde(default)]
    pub direction: Direction,
    /// Bytes of each frame; `None` for all.
    #[serde(default)]
    pub snaplen: Option<u32>,
    /// After which it ends by itself, in milliseconds.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// Whether pods may come later.
    #[serde(default)]
    pub wait: bool,
}

/// A pod, and who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodRequest {
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// Addresses, and names of pods of the agent's node; `None` for anybody.
    #[serde(default)]
    pub peers: Option<Vec<String>>,
}

/// Directions, relative to the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// What the pod receives.
    In,
    /// What the pod sends.
    Out,
    /// Both, and of a flow its answers as well.
    #[default]
    Both,
}
