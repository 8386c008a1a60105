package limit

import (
	"net/netip"
	"slices"
)

// Network returns the /64 of an IPv6 address, because one host usually has the whole /64. It
// returns any other address unchanged.
func Network(caller string) string {
	addr, err := netip.ParseAddr(caller)
	if err != nil || !addr.Is6() || addr.Is4In6() {
		return caller
	}
	return netip.PrefixFrom(addr.WithZone(""), 64).Masked().String()
}

// Within reports whether an address is in one of the networks. An IPv4 address may be mapped to
// IPv6.
func Within(ip netip.Addr, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
}
