//! Why something was dropped, lost or passed over. One enum for the kernel side, counters, metrics and the CLI.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Why a packet was dropped, a copy was lost, or a packet was not looked at.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name = $number,)*
        }

        impl Reason {
            /// How many numbers are in use; the length of counter arrays indexed by reason.
            pub const COUNT: usize = 48;

            /// Every reason, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason of a number as stored in maps.
            #[inline(always)]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The stable word that users, metrics and logs see.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// The frame's headers are cut short or contradict themselves; rules on ports and addresses miss it.
    Malformed = 0,
    /// The kernel has no route to the tunnel's remote address; or what is in the overlay is for nobody there.
    NoRoute = 1,
    /// The next hop's address is unknown and the frame is of a kind that cannot wait for it.
    NeighbourUnknown = 2,
    /// The copy does not fit the path and cannot be cut.
    TooBig = 3,
    /// The target device does not exist.
    DeviceMissing = 4,
    /// The target device is down or refused the frame.
    DeviceDown = 5,
    /// The kernel refused to make room for the tunnel headers.
    EncapsulationRefused = 6,
    /// The private mirror device is missing or down.
    MirrorDeviceLost = 7,
    /// The session has no row in the generation in force.
    SessionMissing = 8,
    /// A copy came back to an endpoint's hook; it is delivered, and not copied again.
    CopyOfCopy = 9,
    /// A frame that is no copy appeared on the private mirror device.
    Stray = 10,
    /// The interface has a program but no endpoint row.
    EndpointMissing = 11,
    /// The session's rate limit was reached.
    RateLimited = 12,
    /// The ring to the user-space encapsulator is full.
    RingFull = 13,
    /// The kernel refused what the user-space encapsulator sent.
    SendFailed = 14,
    /// The connection table is full: the connection counts as opened by either side.
    FlowTableFull = 15,
    /// A redirected packet's tool is known to be dead: down, gone, or silent for longer than its health check
    /// allows.
    TargetDead = 16,
    /// A packet came back from a tool and nothing is known of its way there.
    ReturnUnknown = 17,
    /// The answer to a probe of a tool that counts as dead: the original went on without it.
    ProbeReturned = 18,
    /// A tunnelled packet came back that cannot be taken out of its tunnel.
    DecapsulationRefused = 19,
    /// A pod sent a frame with a source MAC address that is not its own.
    SpoofedMac = 20,
    /// A pod sent a packet with a source IP address that is not its own.
    SpoofedIp = 21,
    /// A pod sent ARP in the name of another.
    SpoofedArp = 22,
    /// A pod sent neighbour discovery in the name of another, or in fragments.
    SpoofedNdp = 23,
    /// A pod sent a router's message: an advertisement or a redirect.
    RouterMessage = 24,
    /// A pod sent what DHCP servers send.
    DhcpServer = 25,
    /// A pod sent a frame that is neither IPv4 nor IPv6 nor ARP; nobody could say whose it is.
    EtherTypeRefused = 26,
    /// A pod sent a frame whose headers cannot be read as far as they would have to be judged.
    Unreadable = 27,
    /// The Egress policy's node is not known, or not reached.
    NoEgressNode = 28,
    /// More left under an Egress policy than its bandwidth allows.
    RateExceeded = 29,
    /// What came by the overlay names an Egress policy that this node does not have.
    EgressUnknown = 30,
    /// What came by the overlay is none of this cluster's tunnels.
    TunnelUnknown = 31,
    /// What came by the overlay has a source that does not belong to the node that sent it.
    OverlaySpoofed = 32,
    /// A packet's time to live is up; the host's stack says so to its sender.
    TtlExceeded = 33,
    /// A packet that was injected for a trace ended where it would have been delivered.
    TraceEnded = 34,
    /// Nobody reads captured frames: the agent is gone, or hangs.
    ReaderMissing = 35,
    /// Whoever captures is too slow: more frames wait for it than may.
    ReaderSlow = 36,
}

impl Reason {
    /// The number as stored in maps.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }
}
