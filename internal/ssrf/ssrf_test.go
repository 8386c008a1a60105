package ssrf_test

import (
	"testing"

	"mlsd/internal/ssrf"
)

func TestMayDial(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"93.184.216.34:443":             true,
		"[2606:4700::1111]:443":         true,
		"93.184.216.34:80":              false,
		"93.184.216.34:5432":            false,
		"[2606:4700::1111]:22":          false,
		"127.0.0.1:443":                 false,
		"127.8.8.8:443":                 false,
		"0.0.0.0:443":                   false,
		"10.1.2.3:443":                  false,
		"172.16.0.1:443":                false,
		"192.168.1.1:443":               false,
		"100.64.0.1:443":                false, // CGNAT
		"169.254.169.254:443":           false, // link-local, cloud metadata
		"192.0.2.1:443":                 false,
		"198.18.0.1:443":                false,
		"224.0.0.1:443":                 false,
		"255.255.255.255:443":           false,
		"[::1]:443":                     false,
		"[::]:443":                      false,
		"[::ffff:127.0.0.1]:443":        false, // IPv4-mapped
		"[::ffff:10.0.0.1]:443":         false,
		"[::ffff:93.184.216.34]:443":    true,
		"[::127.0.0.1]:443":             false, // IPv4-compatible
		"[64:ff9b::7f00:1]:443":         false, // NAT64
		"[2002:7f00:1::]:443":           false, // 6to4
		"[2001:0:7f00:1::]:443":         false, // Teredo
		"[2001:db8::1]:443":             false,
		"[fc00::1]:443":                 false,
		"[fe80::1]:443":                 false,
		"[fe80::1%eth0]:443":            false,
		"[2606:4700::1111%eth0]:443":    false,
		"[ff02::1]:443":                 false,
		"example.com:443":               false, // a name is not an address
		"93.184.216.34":                 false,
		"93.184.216.34:443:443":         false,
		"[fec0::1]:443":                 false,
		"[3fff::1]:443":                 false,
		"[2001:4860:4860::8888]:443":    true,
		"[2001:4860:4860::8888]:443000": false,
	} {
		if got := ssrf.MayDial("tcp4", address, false); got != want {
			t.Errorf("MayDial(%s) = %t, want %t", address, got, want)
		}
	}
	if ssrf.MayDial("udp", "93.184.216.34:443", false) {
		t.Error("udp allowed")
	}
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "[::1]:1": true, "[::ffff:127.0.0.1]:80": true,
		"10.0.0.1:8080": false, "10.0.0.1:443": false, "93.184.216.34:443": true, "93.184.216.34:80": false,
	} {
		if got := ssrf.MayDial("tcp4", address, true); got != want {
			t.Errorf("with loopback, ssrf.MayDial(%s) = %t, want %t", address, got, want)
		}
	}
}
