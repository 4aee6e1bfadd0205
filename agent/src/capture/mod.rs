//! What the command line and the agent say to each other of a capture: the request, and the stream of frames.

mod stream;

use podwire_datapath::object::nearest;
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

/// What was meant by a pod's name that is not known: `; did you mean "default/web-0"?`, or nothing.
pub fn meant(unknown: &str, known: &[&str]) -> String {
    let Some((namespace, name)) = unknown.split_once('/') else {
        return String::new();
    };
    let elsewhere = known.iter().find(|pod| pod.split_once('/').is_some_and(|(_, other)| other == name));
    if let Some(pod) = elsewhere {
        return format!("; did you mean \"{pod}\"?");
    }
    // Namespaces are alike anyhow.
    let near = known.iter().filter_map(|pod| pod.strip_prefix(namespace)?.strip_prefix('/'));
    nearest(name, &near.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn the_nearest_pod_is_of_the_namespace_or_has_the_name() {
        let known = ["default/web-0", "shop/cart"];
        assert_eq!(meant("default/wbe-0", &known), "; did you mean \"web-0\"?");
        assert_eq!(meant("default/cart", &known), "; did you mean \"shop/cart\"?");
        for strange in ["default/zzz", "shop/web", "other/carts", ""] {
            assert_eq!(meant(strange, &known), "", "{strange}");
        }
    }
}
