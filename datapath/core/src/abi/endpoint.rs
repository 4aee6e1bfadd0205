//! What the datapath knows of an endpoint.

/// Direction of a packet relative to the pod, as in a TrafficControl.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards the pod: the host-side interface's egress hook.
    Ingress = 0,
    /// From the pod: the host-side interface's ingress hook.
    Egress = 1,
}

impl Direction {
    /// Both directions, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The number as stored in maps.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

/// One endpoint in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointRow {
    /// Absolute index into `RULESETS` plus one, by [`Direction`]; 0: no rule applies.
    pub rulesets: [u32; 2],
}
