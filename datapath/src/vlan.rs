//! VLAN tags that the kernel keeps beside a frame. In: a frame and its tag, as records have them. Out: the frame with the
//! tag in its place.

/// Bytes of a tag.
pub(crate) const TAG_LEN: u32 = 4;

/// `tag`: protocol in the upper half, TCI in the lower, 0 for none. `None` when the frame has no place for it.
pub(crate) fn with_tag(tag: u32, frame: &[u8]) -> Option<Vec<u8>> {
    let (macs, rest) = frame.split_at_checked(12)?;
    let mut whole = Vec::with_capacity(frame.len() + TAG_LEN as usize);
    whole.extend_from_slice(macs);
    if tag != 0 {
        whole.extend_from_slice(&tag.to_be_bytes());
    }
    whole.extend_from_slice(rest);
    Some(whole)
}
