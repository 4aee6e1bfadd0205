//! Encapsulation of a whole frame, in user space.

use super::{OUTER_MAX, OuterTemplate, PerPacket};
use crate::wire::{Layer, Problem, WireError, ethernet};

/// Writes outer Ethernet header, outer headers and inner frame to `out` and returns their length.
///
/// `packet.inner_len` must be the length of `inner`; all else of `packet` is taken as it is. The EtherType of
/// `ethernet` is that of the template. What BPF programs send is byte for byte the same.
///
/// # Errors
/// Layer IPv4 or IPv6: a total length above 65,535 bytes (`ValueTooLarge`). Layer Ethernet: `packet.inner_len`
/// is not the length of `inner` (`Unsupported`), or `out` is too short (`NoSpace`).
pub fn encapsulate(
    template: &OuterTemplate,
    packet: &PerPacket,
    ethernet: &ethernet::Header,
    inner: &[u8],
    out: &mut [u8],
) -> Result<usize, WireError> {
    if packet.inner_len as usize != inner.len() {
        let (needed, had) = (inner.len(), packet.inner_len as usize);
        return Err(WireError::unsupported(Layer::Ethernet, 0, needed, had));
    }
    let mut headers = [0; OUTER_MAX];
    let len = template.fill(packet, &mut headers);
    let v4 = template.ether_type() == ethernet::ETHER_TYPE_IPV4;
    let (layer, uncounted) = if v4 { (Layer::Ipv4, 0) } else { (Layer::Ipv6, crate::wire::ipv6::HEADER_LEN) };
    let total = (len + inner.len()).saturating_sub(uncounted);
    if total > u16::MAX as usize {
        let problem = Problem::ValueTooLarge;
        return Err(WireError::new(layer, problem, ethernet::HEADER_LEN, u16::MAX as usize, total));
    }
    let needed = ethernet::HEADER_LEN + len + inner.len();
    let had = out.len();
    let Some(space) = out.get_mut(..needed) else {
        return Err(WireError::new(Layer::Ethernet, Problem::NoSpace, 0, needed, had));
    };
    let (link, rest) = space.split_at_mut(ethernet::HEADER_LEN);
    ethernet::Header { ether_type: template.ether_type(), ..*ethernet }.write(link)?;
    let (outer, payload) = rest.split_at_mut(len);
    outer.copy_from_slice(headers.get(..len).unwrap_or_default());
    payload.copy_from_slice(inner);
    Ok(needed)
}
