//! The one error of all readers and writers.

use core::fmt;

/// The protocol whose bytes were at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layer {
    /// Ethernet II.
    Ethernet,
    /// An 802.1Q or 802.1ad tag.
    Vlan,
    /// ARP for IPv4 over Ethernet.
    Arp,
    /// IPv4.
    Ipv4,
    /// The fixed IPv6 header.
    Ipv6,
    /// An IPv6 extension header.
    Ipv6Extension,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP for IPv4.
    Icmp,
    /// ICMPv6.
    Icmpv6,
    /// Neighbour discovery messages and their options.
    Ndp,
    /// VXLAN.
    Vxlan,
    /// GENEVE.
    Geneve,
    /// GRE.
    Gre,
    /// ERSPAN type II or III.
    Erspan,
}

impl Layer {
    /// The protocol's usual name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN tag",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension header",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Icmp => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::Ndp => "NDP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "GENEVE",
            Self::Gre => "GRE",
            Self::Erspan => "ERSPAN",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was wrong. It decides what `needed` and `had` of a [`WireError`] mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes end too early: `needed` bytes from `offset` on, `had` bytes there.
    Truncated,
    /// The output buffer is too small: `needed` bytes from `offset` on, `had` bytes there.
    NoSpace,
    /// A version, type or fixed number is not the one that this reader knows: `needed` it, `had` this one.
    Unsupported,
    /// A length field is less than the header itself needs: at least `needed`, `had` this.
    LengthTooSmall,
    /// A length field goes beyond what holds it, or a chain of headers does not end: at most `needed`, `had`
    /// this.
    LengthTooLarge,
    /// A value that does not fit its field: at most `needed`, `had` this.
    ValueTooLarge,
    /// A checksum does not fit the bytes: computed `needed`, found `had`.
    Checksum,
}

/// Why bytes could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireError {
    /// Whose bytes were at fault.
    pub layer: Layer,
    /// What was wrong with them.
    pub problem: Problem,
    /// Where the faulty header or field begins, in bytes from the start of the frame (of the output buffer
    /// when writing).
    pub offset: usize,
    /// See [`Problem`].
    pub needed: usize,
    /// See [`Problem`].
    pub had: usize,
}

impl WireError {
    pub(crate) const fn new(
        layer: Layer,
        problem: Problem,
        offset: usize,
        needed: usize,
        had: usize,
    ) -> Self {
        Self { layer, problem, offset, needed, had }
    }

    pub(crate) const fn truncated(layer: Layer, offset: usize, needed: usize, had: usize) -> Self {
        Self::new(layer, Problem::Truncated, offset, needed, had)
    }

    pub(crate) const fn unsupported(layer: Layer, offset: usize, needed: usize, had: usize) -> Self {
        Self::new(layer, Problem::Unsupported, offset, needed, had)
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, problem, offset, needed, had } = *self;
        write!(f, "{layer} at byte {offset}: ")?;
        match problem {
            Problem::Truncated => write!(f, "needs {needed} bytes, the packet has {had}"),
            Problem::NoSpace => write!(f, "needs {needed} bytes of space, there are {had}"),
            Problem::Unsupported => write!(f, "expected {needed:#x}, found {had:#x}"),
            Problem::LengthTooSmall => write!(f, "length {had} is below the least possible, {needed}"),
            Problem::LengthTooLarge => write!(f, "length {had} exceeds {needed}"),
            Problem::ValueTooLarge => write!(f, "value {had} exceeds {needed}"),
            Problem::Checksum => write!(f, "checksum {had:#06x} should be {needed:#06x}"),
        }
    }
}

impl core::error::Error for WireError {}
