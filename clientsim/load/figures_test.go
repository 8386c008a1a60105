package load

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   []float64
		want float64
	}{{[]float64{7}, 7}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := Median(test.of); got != test.want {
			t.Errorf("median of %v is %v, want %v", test.of, got, test.want)
		}
	}
	if got := Median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{Figure(0), "0"}, {Figure(-1234567), "-1,234,567"}, {Figure(-123), "-123"}, {Figure(999), "999"},
		{Figure(99.97), "100"}, {Figure(9.996), "10.0"}, {Figure(0.0512), "0.051"}, {Figure(3), "3"},
		{Figure(math.NaN()), None}, {Figure(math.Inf(1)), None},
		{Seconds(7e-6), "7 µs"}, {Seconds(999.6e-6), "1.00 ms"}, {Seconds(0.012345), "12.3 ms"}, {Seconds(2.5), "2.50 s"},
		{Size(512), "512 B"}, {Size(24 << 30), "24 GiB"}, {Size(-1), "0 B"},
		{Plural(1, "convo"), "1 convo"}, {Plural(1000, "convo"), "1,000 convos"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}
