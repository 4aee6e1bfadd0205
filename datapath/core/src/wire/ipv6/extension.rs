//! Extension headers (RFC 8200 section 4) and the way to the upper layer.
//!
//! ```text
//! hop-by-hop, destination options, routing, mobility, HIP, shim6   | next | length in 8 bytes, less 1 | ...
//! fragment (always 8 bytes)          | next | reserved | offset(13) reserved(2) M(1) | identification(32) |
//! authentication (RFC 4302)          | next | length in 4 bytes, less 2 | reserved(16) | SPI | sequence | ICV |
//! ```
//! Big-endian.

use super::View;
use crate::wire::{Layer, Problem, WireError, field, protocol};

/// Extension headers that a walk follows; a packet with more is an error.
pub const MAX_HEADERS: usize = 8;
/// Bytes of the fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// Bytes of an authentication header's fixed fields.
pub const AUTHENTICATION_MIN_LEN: usize = 12;
/// Flag "more fragments" in the fragment header's second word.
pub const FLAG_MORE_FRAGMENTS: u16 = 0x0001;

/// Whether a next-header number is that of an extension header whose length can be read.
pub const fn is_extension(number: u8) -> bool {
    matches!(
        number,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION_OPTIONS
            | protocol::MOBILITY
            | protocol::HIP
            | protocol::SHIM6
    )
}

/// An extension header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    number: u8,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Extension<'a> {
    /// Reads the extension header `number` at `at` of a packet that ends where `packet` ends.
    ///
    /// # Errors
    /// A number that [`is_extension`] does not know; fewer bytes than the header's length; an authentication header
    /// shorter than its fixed fields.
    pub fn parse(number: u8, packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        if !is_extension(number) {
            let (needed, had) = (protocol::HOP_BY_HOP as usize, number as usize);
            return Err(WireError::unsupported(Layer::Ipv6Extension, at, needed, had));
        }
        let bytes = field::rest(Layer::Ipv6Extension, packet, at, 8)?;
        let len = match number {
            protocol::FRAGMENT => FRAGMENT_LEN,
            // RFC 4302 counts in units of four bytes, less two of them; in IPv6 the result is a multiple of eight.
            protocol::AUTHENTICATION => (field::byte(bytes, 1) as usize + 2) * 4,
            _ => (field::byte(bytes, 1) as usize + 1) * 8,
        };
        if number == protocol::AUTHENTICATION && len < AUTHENTICATION_MIN_LEN {
            let (problem, least) = (Problem::LengthTooSmall, AUTHENTICATION_MIN_LEN);
            return Err(WireError::new(Layer::Ipv6Extension, problem, at + 1, least, len));
        }
        field::rest(Layer::Ipv6Extension, packet, at, len)?;
        Ok(Self { number, bytes: field::range(bytes, 0, len), at })
    }

    /// The header's own number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The number of what follows.
    pub fn next_header(&self) -> u8 {
        field::byte(self.bytes, 0)
    }

    /// The header's bytes, next header and length included.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where what follows begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + self.bytes.len()
    }

    /// The fields of a fragment header.
    pub fn fragment(&self) -> Option<Fragment> {
        let word = field::be16(self.bytes, 2);
        (self.number == protocol::FRAGMENT).then(|| Fragment {
            next_header: self.next_header(),
            offset: word & super::FRAGMENT_OFFSET_MASK,
            more: word & FLAG_MORE_FRAGMENTS != 0,
            id: field::be32(self.bytes, 4),
        })
    }

    /// Hops that a routing header has still to visit.
    pub fn segments_left(&self) -> Option<u8> {
        (self.number == protocol::ROUTING).then(|| field::byte(self.bytes, 3))
    }

    /// The options of a hop-by-hop or destination options header; none for other headers.
    pub fn options(&self) -> Options<'a> {
        let bytes = match self.number {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS => {
                field::range(self.bytes, 2, self.bytes.len())
            }
            _ => &[],
        };
        Options { bytes, at: self.at + 2 }
    }
}

/// Walks extension headers up to the upper layer, and behind a later fragment's header to its end.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    frame: &'a [u8],
    number: u8,
    at: usize,
    left: usize,
    fragment: Option<Fragment>,
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let later_fragment = self.fragment.is_some_and(|fragment| fragment.offset != 0);
        if later_fragment || !is_extension(self.number) {
            return None;
        }
        let parsed = if self.left == 0 {
            let (problem, most) = (Problem::LengthTooLarge, MAX_HEADERS);
            Err(WireError::new(Layer::Ipv6Extension, problem, self.at, most, most + 1))
        } else {
            Extension::parse(self.number, self.frame, self.at)
        };
        match &parsed {
            Ok(extension) => {
                self.left -= 1;
                self.number = extension.next_header();
                self.at = extension.payload_offset();
                self.fragment = extension.fragment().or(self.fragment);
            }
            // The walk ends with its error.
            Err(_) => self.number = protocol::NO_NEXT_HEADER,
        }
        Some(parsed)
    }
}

/// Where a packet's extension headers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// Protocol of the payload; behind a later fragment's header, of the datagram's fragmentable part.
    pub protocol: u8,
    /// Where the payload begins in the frame.
    pub offset: usize,
    /// The fragment header, when there is one. With an offset above 0 the payload is not the upper layer's
    /// header but something from the middle of the datagram.
    pub fragment: Option<Fragment>,
    /// The payload, up to the packet's end.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// The extension headers, one by one, at most [`MAX_HEADERS`]; a bad one ends the walk with an error.
    pub fn extensions(&self) -> Extensions<'a> {
        Extensions {
            frame: self.frame,
            number: self.next_header(),
            at: self.payload_offset(),
            left: MAX_HEADERS,
            fragment: None,
        }
    }

    /// Follows the extension headers to the upper layer.
    ///
    /// # Errors
    /// A header that is cut short; more than [`MAX_HEADERS`] of them.
    pub fn upper_layer(&self) -> Result<UpperLayer<'a>, WireError> {
        let mut walk = self.extensions();
        for extension in &mut walk {
            extension?;
        }
        Ok(UpperLayer {
            protocol: walk.number,
            offset: walk.at,
            fragment: walk.fragment,
            payload: field::range(self.frame, walk.at, self.frame.len()),
        })
    }
}

/// One option of a hop-by-hop or destination options header (RFC 8200 section 4.2). Pad1 has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Option<'a> {
    /// The type byte; its top bits say what to do when it is not known.
    pub kind: u8,
    /// What follows type and length.
    pub data: &'a [u8],
}

/// Walks options. See [`Extension::options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Option type Pad1, a single byte.
pub const OPTION_PAD1: u8 = 0;
/// Option type PadN.
pub const OPTION_PADN: u8 = 1;

impl<'a> Iterator for Options<'a> {
    type Item = Result<Ipv6Option<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = match *self.bytes {
            [] => return None,
            [OPTION_PAD1, ..] => 1,
            [_, len, ..] => 2 + len as usize,
            [_] => 2,
        };
        let Some((option, rest)) = self.bytes.split_at_checked(len) else {
            let had = core::mem::take(&mut self.bytes).len();
            return Some(Err(WireError::new(
                Layer::Ipv6Extension,
                Problem::LengthTooLarge,
                self.at,
                had,
                len,
            )));
        };
        self.bytes = rest;
        self.at += len;
        Some(Ok(Ipv6Option { kind: field::byte(option, 0), data: field::range(option, 2, len) }))
    }
}

/// A fragment header, read or to write (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Number of what follows in the datagram.
    pub next_header: u8,
    /// Where this fragment's payload belongs in the datagram's fragmentable part, in bytes, a multiple of eight.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
    /// Identification.
    pub id: u32,
}

impl Fragment {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// An offset that is no multiple of eight; no space for 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::whole_units(Layer::Ipv6Extension, 2, self.offset as usize, 8)?;
        let more = if self.more { FLAG_MORE_FRAGMENTS } else { 0 };
        let (o, i) = ((self.offset | more).to_be_bytes(), self.id.to_be_bytes());
        field::put(Layer::Ipv6Extension, out, [self.next_header, 0, o[0], o[1], i[0], i[1], i[2], i[3]])
    }
}

/// Any extension header but the fragment header, to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Number of this header: it decides the unit of its length.
    pub number: u8,
    /// Number of what follows.
    pub next_header: u8,
    /// What follows next header and length: with those two bytes a multiple of eight bytes.
    pub data: &'a [u8],
}

impl Header<'_> {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A number that is no extension header's, or the fragment header's; data that is too long or, with the two
    /// bytes before it, no multiple of eight; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if !is_extension(self.number) || self.number == protocol::FRAGMENT {
            let (needed, had) = (protocol::HOP_BY_HOP as usize, self.number as usize);
            return Err(WireError::unsupported(Layer::Ipv6Extension, 0, needed, had));
        }
        let len = 2 + self.data.len();
        field::whole_units(Layer::Ipv6Extension, 1, len, 8)?;
        let (unit, less) = if self.number == protocol::AUTHENTICATION { (4, 2) } else { (8, 1) };
        field::at_most(Layer::Ipv6Extension, 1, len, (u8::MAX as usize + less) * unit)?;
        let units = (len / unit).wrapping_sub(less) as u8;
        field::put_with(Layer::Ipv6Extension, out, [self.next_header, units], self.data)
    }
}
