package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mlsd/internal/await"
)

// publicHost is the name under which clients reach the service of a proxy.
const publicHost = "mls.example.com"

// proxyKind is a reverse proxy with a configuration in deploy/ops/proxies.
type proxyKind struct {
	name, file string
	repeats    bool // at another node, a request that one could not answer
	// local changes the configuration as an operator would for this test: other addresses, another
	// certificate and folders. Old and new texts follow each other. Each old one must be there.
	local func(p *proxy) []string
	args  func(config, dir string) []string
}

// nginxFolders moves every folder that nginx makes at its start: where it was unpacked and not
// installed, /var/lib/nginx is not there.
func nginxFolders(dir string) string {
	var directives strings.Builder
	for _, what := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&directives, "%s_temp_path %s/%s; ", what, dir, what)
	}
	return directives.String()
}

// proxyKinds are the proxies of docs/operating/PROXIES.md.
func proxyKinds() []proxyKind {
	return []proxyKind{
		{"nginx", "nginx.conf", true, func(p *proxy) []string {
			return []string{
				"user www-data;", "user root;",
				"http {", "http { " + nginxFolders(p.dir),
				"/var/log/nginx/mlsd.log", p.dir + "/access.log",
				"listen 443 ", "listen " + p.address + " ",
				"        listen [::]:443 ssl http2;\n", "",
				"/etc/nginx/mls.example.com.crt", p.dir + "/certificate.pem",
				"/etc/nginx/mls.example.com.key", p.dir + "/key.pem",
			}
		}, func(config, dir string) []string {
			return []string{"-p", dir, "-c", config, "-e", "stderr", "-g", "daemon off; pid " + dir + "/nginx.pid;"}
		}},
		{"haproxy", "haproxy.cfg", true, func(p *proxy) []string {
			return []string{
				"log /dev/log local0", "log stdout format raw local0",
				"    user haproxy\n    group haproxy\n", "",
				"bind :::443 v4v6 ", "bind " + p.address + " ",
				"/etc/haproxy/mls.example.com.pem", p.dir + "/both.pem",
			}
		}, func(config, _ string) []string { return []string{"-db", "-f", config} }},
		{"caddy", "Caddyfile", false, func(p *proxy) []string {
			return []string{
				"{\n\tservers {", "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers {",
				publicHost + " {", "https://" + publicHost + ":" + p.port() + " {\n\tbind 127.0.0.1\n\ttls " + p.dir +
					"/certificate.pem " + p.dir + "/key.pem",
			}
		}, func(config, _ string) []string { return []string{"run", "--adapter", "caddyfile", "--config", config} }},
	}
}

// proxy is a reverse proxy that runs.
type proxy struct {
	kind         proxyKind
	address, dir string
	authority    *x509.CertPool
	log          *output
}

func (p *proxy) port() string { return p.address[strings.LastIndexByte(p.address, ':')+1:] }

// startProxy starts a program before two nodes, with its configuration from deploy/ops/proxies. It
// returns when the nodes answer through it. The program ends with the test.
func startProxy(t *testing.T, kind proxyKind, program string, nodes [2]string) *proxy {
	t.Helper()
	p := &proxy{kind: kind, address: freeAddress(t), dir: t.TempDir(), log: newOutput()}
	p.certify(t)
	p.configure(t, nodes)
	ended := p.run(t, program)
	await.Until(t, kind.name+" answers", func() bool {
		select {
		case <-ended:
			t.Fatalf("%s has ended:\n%s", kind.name, p.log)
		default:
		}
		resp, err := p.clientAt("127.0.0.1", true).Get("https://" + publicHost + "/xrpc/_health")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
	return p
}

// configure writes the configuration of deploy/ops/proxies with the addresses and files of this test.
func (p *proxy) configure(t *testing.T, nodes [2]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy", "ops", "proxies", p.kind.file))
	if err != nil {
		t.Fatal(err)
	}
	changes := append(p.kind.local(p), "10.0.0.11:8080", nodes[0], "10.0.0.12:8080", nodes[1])
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			t.Fatalf("%s has no %q", p.kind.file, changes[i])
		}
		text = []byte(strings.Replace(string(text), changes[i], changes[i+1], 1))
	}
	p.write(t, p.kind.file, text)
}

// run runs the program until the test ends. The channel is closed when it has ended.
func (p *proxy) run(t *testing.T, program string) <-chan struct{} {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, p.kind.args(filepath.Join(p.dir, p.kind.file), p.dir)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it ends by a signal
	}()
	t.Cleanup(func() {
		<-ended
		if t.Failed() {
			text := p.log.String()
			t.Logf("end of the log of %s:\n%s", p.kind.name, text[max(0, len(text)-2000):])
		}
	})
	return ended
}

// clientAt returns an HTTP client with an address of this machine. It finds the service's name at the
// proxy, and speaks HTTP/2, or else HTTP/1.1, which WebSockets need.
func (p *proxy) clientAt(address string, http2 bool) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: p.authority}, ForceAttemptHTTP2: http2, DisableCompression: true,
		ResponseHeaderTimeout: 30 * time.Second,
	}
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, p.address)
	}
	return &http.Client{Transport: transport}
}

// certify makes a certificate for the service's name that signs itself, as files for the proxies.
func (p *proxy) certify(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{publicHost}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	p.write(t, "certificate.pem", certificate)
	p.write(t, "key.pem", secret)
	p.write(t, "both.pem", append(certificate, secret...))
	p.authority = x509.NewCertPool()
	p.authority.AppendCertsFromPEM(certificate)
}

func (p *proxy) write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddress returns an address of this machine at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	return l.Addr().String()
}

// The configurations of the guide name no admin listener, and the guide names each of them.
func TestProxyFiles(t *testing.T) {
	t.Parallel()
	page := pages(t)["docs/operating/PROXIES.md"]
	for _, kind := range proxyKinds() {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "ops", "proxies", kind.file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "8081") || strings.Count(string(text), ":8080") != 2 {
			t.Errorf("%s has the port of the admin listener, or lacks that of two nodes", kind.file)
		}
		if !strings.Contains(page, "(../../deploy/ops/proxies/"+kind.file+")") {
			t.Errorf("docs/operating/PROXIES.md does not name %s", kind.file)
		}
	}
}
