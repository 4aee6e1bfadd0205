//! IPv4 or IPv6, for readers to whom the version makes no difference.

use super::{
    Layer, WireError,
    checksum::{Sum, pseudo_v4, pseudo_v6},
    ethernet, ipv4, ipv6,
};

/// An IP packet, read in place.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// IPv4.
    V4(ipv4::View<'a>),
    /// IPv6.
    V6(ipv6::View<'a>),
}

/// What an IP packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport<'a> {
    /// IP protocol number.
    pub protocol: u8,
    /// Where the payload begins in the frame.
    pub offset: usize,
    /// The frame up to the end of the packet.
    pub frame: &'a [u8],
    /// Set when the packet is a fragment.
    pub fragment: Option<Fragment>,
}

/// Which part of a datagram a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Identification.
    pub id: u32,
    /// Where the payload belongs in the datagram, in bytes; 0 for the first fragment.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
}

impl<'a> View<'a> {
    /// Reads the packet at `at` that an EtherType announces; `None` when that is neither of the two.
    ///
    /// # Errors
    /// As [`ipv4::View::parse`] and [`ipv6::View::parse`].
    pub fn parse(ether_type: u16, frame: &'a [u8], at: usize) -> Result<Option<Self>, WireError> {
        match ether_type {
            ethernet::ETHER_TYPE_IPV4 => ipv4::View::parse(frame, at).map(Self::V4).map(Some),
            ethernet::ETHER_TYPE_IPV6 => ipv6::View::parse(frame, at).map(Self::V6).map(Some),
            _ => Ok(None),
        }
    }

    /// Follows IPv6 extension headers and says what the packet carries. An IPv6 packet with a fragment header
    /// that says "the only fragment" (RFC 6946) is none.
    ///
    /// # Errors
    /// As [`ipv6::View::upper_layer`].
    pub fn transport(&self) -> Result<Transport<'a>, WireError> {
        match self {
            Self::V4(ip) => Ok(Transport {
                protocol: ip.protocol(),
                offset: ip.payload_offset(),
                frame: ip.frame(),
                fragment: ip.is_fragment().then(|| Fragment {
                    id: ip.id().into(),
                    offset: ip.fragment_offset(),
                    more: ip.more_fragments(),
                }),
            }),
            Self::V6(ip) => {
                let upper = ip.upper_layer()?;
                Ok(Transport {
                    protocol: upper.protocol,
                    offset: upper.offset,
                    frame: ip.frame(),
                    fragment: upper
                        .fragment
                        .filter(|part| part.offset != 0 || part.more)
                        .map(|part| Fragment { id: part.id, offset: part.offset.into(), more: part.more }),
                })
            }
        }
    }

    /// Sum of the pseudo-header for an upper layer of `len` bytes.
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> Sum {
        match self {
            Self::V4(ip) => pseudo_v4(ip.source(), ip.destination(), protocol, len as u16),
            Self::V6(ip) => pseudo_v6(ip.source(), ip.destination(), protocol, len as u32),
        }
    }

    /// Which of the two it is.
    pub fn layer(&self) -> Layer {
        match self {
            Self::V4(_) => Layer::Ipv4,
            Self::V6(_) => Layer::Ipv6,
        }
    }
}
