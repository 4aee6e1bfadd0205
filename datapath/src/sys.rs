//! System calls that no crate of ours wraps.

use std::io;

/// Returns after every CPU has passed through a quiescent state.
pub(crate) fn membarrier_global() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes numbers only.
    match unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Switches segmentation and checksum offload of a device off, so that the kernel does both before it hands a
/// frame to it.
pub(crate) fn without_offload(interface: &str) -> io::Result<()> {
    // ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM, ETHTOOL_SSG of linux/ethtool.h; what depends on checksum
    // offload (UDP segmentation among it) goes with it.
    const OFF: [u32; 4] = [0x1f, 0x24, 0x17, 0x19];
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    OFF.into_iter().try_for_each(|command| set_flag(&socket, interface, command, false))
}

/// Switches checksum offload of a device off; segmentation offload, which builds on it, goes with it.
#[cfg(feature = "xsk")]
pub(crate) fn without_checksum_offload(interface: &str) -> io::Result<()> {
    /// `ETHTOOL_STXCSUM` of linux/ethtool.h.
    const CHECKSUMS: u32 = 0x17;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    set_flag(&socket, interface, CHECKSUMS, false)
}

/// Switches generic receive offload of a device on.
#[cfg(feature = "xsk")]
pub(crate) fn with_gro(interface: &str) -> io::Result<()> {
    /// `ETHTOOL_SGRO` of linux/ethtool.h.
    const GRO: u32 = 0x2c;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    set_flag(&socket, interface, GRO, true)
}

/// `struct ethtool_channels` of linux/ethtool.h.
#[cfg(feature = "xsk")]
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// How many queues a device receives and sends by; `None` when its driver does not say.
#[cfg(feature = "xsk")]
pub(crate) fn queues(interface: &str) -> Option<(u32, u32)> {
    /// `ETHTOOL_GCHANNELS` of linux/ethtool.h.
    const CHANNELS: u32 = 0x3c;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let mut value = EthtoolChannels { command: CHANNELS, ..EthtoolChannels::default() };
    let mut request = named(interface).ok()?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    ask_device(&socket, libc::SIOCETHTOOL, &mut request).ok()?;
    Some((value.receive + value.combined, value.send + value.combined))
}

/// `struct ethtool_drvinfo` of linux/ethtool.h.
#[cfg(feature = "xsk")]
#[repr(C)]
struct EthtoolDriver {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// Which driver a device has; `None` when it does not say.
#[cfg(feature = "xsk")]
pub(crate) fn driver(interface: &str) -> Option<String> {
    /// `ETHTOOL_GDRVINFO` of linux/ethtool.h.
    const DRIVER: u32 = 0x03;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    let mut value = EthtoolDriver { command: DRIVER, driver: [0; 32], rest: [0; 160] };
    let mut request = named(interface).ok()?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    ask_device(&socket, libc::SIOCETHTOOL, &mut request).ok()?;
    let name = std::ffi::CStr::from_bytes_until_nul(&value.driver).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// Tells network namespaces apart (`SO_NETNS_COOKIE`, Linux 5.14).
#[cfg(feature = "xsk")]
pub(crate) fn netns_cookie() -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    const COOKIE: libc::c_int = 71;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the option is a number, as long as said.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of the network layer that a device takes.
#[cfg(feature = "xsk")]
pub(crate) fn mtu(interface: &str) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut request = named(interface)?;
    ask_device(&socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the request was answered with this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// A request about a device.
fn named(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

fn ask_device(
    socket: &std::net::UdpSocket,
    question: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the kernel reads and writes the request and what it points to, which outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), question, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn set_flag(socket: &std::net::UdpSocket, interface: &str, command: u32, on: bool) -> io::Result<()> {
    let mut value = EthtoolValue { command, data: u32::from(on) };
    let mut request = named(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    ask_device(socket, libc::SIOCETHTOOL, &mut request)
}

/// Lets the kernel cut what a raw socket sends into fragments.
pub(crate) fn allow_fragments(socket: &impl std::os::fd::AsRawFd, v6: bool) -> io::Result<()> {
    let (level, option, value) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
    };
    let value: libc::c_int = value;
    // SAFETY: the option's value is an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends messages through one socket, as many as the kernel takes; says how many. It fails when the first one does.
pub(crate) fn send_batch(
    socket: &impl std::os::fd::AsRawFd,
    messages: &[(socket2::SockAddr, &[u8])],
) -> io::Result<usize> {
    let mut parts: Vec<libc::iovec> = messages
        .iter()
        .map(|(_, bytes)| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
        .collect();
    let mut headers: Vec<libc::mmsghdr> = messages
        .iter()
        .zip(&mut parts)
        .map(|((address, _), part)| {
            // SAFETY: all zero is a value of this plain C structure.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = address.len();
            header.msg_hdr.msg_iov = std::ptr::from_mut(part);
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect();
    // SAFETY: addresses and buffers are as long as said and outlive the call; the kernel only reads them, and writes to
    // the headers, of which there are so many.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), headers.len() as libc::c_uint, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Sends a frame out of a device, as it is.
pub(crate) fn send_frame(ifindex: u32, frame: &[u8]) -> io::Result<()> {
    FrameSocket::open(ifindex)?.send(frame)
}

/// Sends frames out of one device; receives nothing.
#[derive(Debug)]
pub(crate) struct FrameSocket(std::os::fd::OwnedFd);

impl FrameSocket {
    pub(crate) fn open(ifindex: u32) -> io::Result<Self> {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        // SAFETY: the call takes numbers only. Protocol 0: the socket receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now and is nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zero is a value of this plain C structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is as long as said and outlives the call.
        match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
            0 => Ok(Self(socket)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // SAFETY: the buffer is as long as said and outlives the call.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// `skb->mark` of what is sent next.
    pub(crate) fn set_mark(&self, mark: u32) -> io::Result<()> {
        self.set(libc::SO_MARK, mark)
    }

    /// `skb->priority` of what is sent next.
    pub(crate) fn set_priority(&self, priority: u32) -> io::Result<()> {
        self.set(libc::SO_PRIORITY, priority)
    }

    fn set(&self, option: libc::c_int, value: u32) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let len = size_of::<u32>() as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: the option's value is a number that outlives the call.
        match unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, option, value, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Waits until no packet can still run under an earlier generation: `membarrier`'s global command waits for an
/// RCU grace period, in which every program that had begun has ended.
pub(crate) fn wait_for_packets() {
    if membarrier_global().is_err() {
        // The command is refused where CPUs run without the timer tick; programs run for microseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Whether an AF_XDP socket's packets are not copied (`XDP_OPTIONS` of linux/if_xdp.h).
#[cfg(feature = "xsk")]
pub(crate) fn is_zero_copy(socket: std::os::fd::RawFd) -> bool {
    let mut flags: u32 = 0;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option is a number, as long as said.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_XDP, libc::XDP_OPTIONS, (&raw mut flags).cast(), &raw mut len)
    };
    result == 0 && flags & libc::XDP_OPTIONS_ZEROCOPY != 0
}

/// Has the kernel send what is in an AF_XDP socket's queue.
#[cfg(feature = "xsk")]
pub(crate) fn kick(socket: std::os::fd::RawFd) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    let sent = unsafe { libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether programs are at a device's tcx egress hook. Where the kernel does not say, there are.
#[cfg(feature = "xsk")]
pub(crate) fn has_egress_programs(ifindex: u32) -> bool {
    /// `BPF_PROG_QUERY` and `BPF_TCX_EGRESS` of linux/bpf.h.
    const QUERY: libc::c_int = 16;
    const TCX_EGRESS: u32 = 47;
    /// The members of `union bpf_attr` for a query, up to the count.
    #[repr(C)]
    struct Query {
        target: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        pad: u32,
        rest: [u64; 4],
    }
    let mut query = Query {
        target: ifindex,
        attach_type: TCX_EGRESS,
        query_flags: 0,
        attach_flags: 0,
        ids: 0,
        count: 0,
        pad: 0,
        rest: [0; 4],
    };
    // SAFETY: the kernel reads and writes the structure, which outlives the call and is as long as said.
    let result = unsafe { libc::syscall(libc::SYS_bpf, QUERY, &raw mut query, size_of::<Query>()) };
    match result {
        0 => query.count > 0,
        // A kernel without tcx knows no such hook (EINVAL); one with it and nothing there says so (ENOENT).
        _ => !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL | libc::ENOENT)),
    }
}
