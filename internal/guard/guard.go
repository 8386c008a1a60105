// Package guard decides where this server may connect for a stranger: to hosts that are public, and to nothing behind the firewall.
package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/bluesky-social/indigo/util/ssrf"
)

// ErrForbidden is a host at an address where this server will not go.
var ErrForbidden = errors.New("address is not public")

// Control returns a net.Dialer.Control that lets connections out to public addresses on port 443 only, and with allowLoopback to
// this machine on any port. The address is checked when the socket connects, after DNS, so that a name that changes its answer
// gains nothing. The error is ErrForbidden.
func Control(allowLoopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		if !MayDial(network, address, allowLoopback) {
			return fmt.Errorf("%w: %s", ErrForbidden, address)
		}
		return nil
	}
}

// MayDial reports whether a stranger may have this server connect to address,
// an IP address and port.
func MayDial(network, address string, allowLoopback bool) bool {
	if network != "tcp4" && network != "tcp6" {
		return false
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil || ap.Addr().Zone() != "" {
		return false
	}
	ip := ap.Addr().Unmap()
	if allowLoopback && ip.IsLoopback() {
		return true
	}
	return ap.Port() == 443 && ssrf.IsPublicIPAddress(ip.AsSlice()) && !isTransition(ip)
}

// isTransition reports addresses that util/ssrf takes for public IPv6, but that
// stand for an IPv4 address or for none (IANA special-purpose registry).
func isTransition(ip netip.Addr) bool {
	for _, p := range [...]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01}), 23),             // protocol assignments, Teredo
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8}), 32), // documentation
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16),             // 6to4
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x3f, 0xff}), 20),             // documentation
	} {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
