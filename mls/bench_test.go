package mls

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkHeaderPrivateMessage parses the header of a message. The target is 1 µs.
func BenchmarkHeaderPrivateMessage(b *testing.B) {
	msg := privateMessage(1, ContentTypeApplication, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHeader(msg); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeyPackage makes every check of a published KeyPackage. The target is 150 µs.
func BenchmarkKeyPackage(b *testing.B) {
	for _, suite := range supportedSuites {
		b.Run(suite.String(), func(b *testing.B) {
			data := framed(5, newSpec(b, suite).build(b))
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				k, err := ParseKeyPackage(data)
				if err != nil {
					b.Fatal(err)
				}
				if err := k.Check(testNow); err != nil {
					b.Fatal(err)
				}
				if err := k.VerifySignatures(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseKeyPackage(b *testing.B) {
	data := framed(5, newSpec(b, SuiteX25519AES128).build(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseKeyPackage(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHostile gives 64 KiB of the most expensive input to every function that checks it. The
// target is 5 ms of processor time (cpu-µs/op), with the garbage collector's. It does not apply to
// input with many valid signatures: each of these must be verified.
func BenchmarkHostile(b *testing.B) {
	for _, in := range hostileInputs(b, 64<<10) {
		b.Run(in.name, func(b *testing.B) {
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				in.check()
			}
		})
	}
}

// reportCPU reports the processor time of each operation of a benchmark. Other work on the machine
// does not change it.
func reportCPU(b *testing.B) (done func()) {
	before := cpuTime(b)
	return func() {
		b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	}
}

// cpuTime returns the processor time of the process so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
