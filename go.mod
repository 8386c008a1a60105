module mlsd

go 1.26.0

require (
	github.com/bluesky-social/indigo v0.0.0-20260605210604-af2fec94f34c // DIDs, NSIDs, service-auth keys; kept by: Bluesky; instead: parsers of our own; 2,000 lines
	github.com/coder/websocket v1.8.15 // WebSockets; kept by: Coder; instead: gorilla/websocket
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // JSON without duplicates; kept by: Go members; instead: `encoding/json/v2`, once released
	github.com/golang-jwt/jwt/v5 v5.3.1 // tests: APNs tokens; kept by: a community; instead: by hand in the test
	github.com/google/go-cmp v0.7.0 // tests: differences; kept by: Google; instead: `reflect.DeepEqual`
	github.com/google/uuid v1.6.0 // UUIDs; kept by: Google; instead: 50 lines
	github.com/hashicorp/golang-lru/v2 v2.0.7 // bounded caches; kept by: HashiCorp; instead: 60 lines
	github.com/jackc/pgx/v5 v5.12.0 // PostgreSQL; kept by: one person; instead: nothing equal: `database/sql` has no batches
	github.com/jackc/puddle/v2 v2.2.3 // errors of pgx's pool; kept by: one person; instead: nothing while pgx uses it
	github.com/labstack/echo/v4 v4.16.0 // routes and middleware; kept by: LabStack; instead: `net/http`
	github.com/mr-tron/base58 v1.2.0 // keys in the DID document; kept by: one person; instead: 30 lines
	github.com/prometheus/client_golang v1.25.0 // metrics; kept by: Prometheus; instead: 300 lines
	github.com/sideshow/apns2 v0.25.0 // Apple's push service; kept by: one person; instead: 150 lines
	github.com/thomas-vilte/mls-go v1.6.0 // simulator: MLS clients; kept by: one person; instead: another MLS library
	github.com/urfave/cli/v3 v3.14.0 // flags and commands; kept by: a community; instead: `flag`; 200 lines
	golang.org/x/crypto v0.58.0 // `cryptobyte` reads MLS's structures; kept by: Go; instead: 150 lines
	golang.org/x/mod v0.41.0 // Merkle proofs, signed notes; kept by: Go; instead: 400 lines
	golang.org/x/net v0.61.0 // public suffix list; header fields; kept by: Go; instead: counting by host name
	golang.org/x/sync v0.24.0 // goroutine groups, semaphores; kept by: Go; instead: 100 lines
	golang.org/x/term v0.47.0 // is the output a terminal?; kept by: Go; instead: an ioctl
	golang.org/x/time v0.16.0 // token buckets; kept by: Go; instead: 60 lines
	golang.org/x/tools v0.51.0 // tests: goimports for mutants; kept by: Go; instead: 70 lines
	pgregory.net/rapid v1.3.0 // tests: random inputs that shrink; kept by: one person; instead: `testing.F`
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // benchmark: latencies; kept by: a community; instead: sorted samples
	github.com/KimMachineGun/automemlimit v1.0.1 // the container's memory limit; kept by: one person; instead: 40 lines
	github.com/SherClockHolmes/webpush-go v1.4.0 // Web Push: RFC 8291 and 8292; kept by: one person; instead: 120 lines
	github.com/anishathalye/porcupine v1.3.1 // simulator: is a history linearizable?; kept by: one person; instead: a search; 300 lines
	github.com/cloudflare/circl v1.6.5 // Ed448 and ML-DSA signatures; kept by: Cloudflare; instead: nothing
	github.com/fxamacker/cbor/v2 v2.9.6 // DAG-CBOR frames; kept by: one person, audited; instead: 300 lines
	github.com/golang-migrate/migrate/v4 v4.20.1 // migrations; kept by: a community; instead: 300 lines
	github.com/ipld/go-car v0.6.1-0.20230509095817-92d28eb23ba4 // mlsd-dev: CAR files of proofs; kept by: IPLD; instead: 30 lines
	github.com/minio/minio-go/v7 v7.4.1 // attachments in S3; only `features/attachments/s3store`; kept by: MinIO; instead: 400 lines
	github.com/prometheus/prometheus v0.310.0 // tests: alerts are evaluated; kept by: Prometheus; instead: `promtool`
	go.opentelemetry.io/otel v1.47.0 // traces: attributes, the W3C header; kept by: OpenTelemetry; instead: 300 lines
	go.opentelemetry.io/otel/sdk v1.47.0 // traces: makes spans; kept by: OpenTelemetry; instead: 300 lines
	go.opentelemetry.io/otel/trace v1.47.0 // traces: the span of a context; kept by: OpenTelemetry; instead: 300 lines
)

require (
	github.com/dennwc/varint v1.0.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/edsrzf/mmap-go v1.2.0 // indirect
	github.com/facette/natsort v0.0.0-20181210072756-2cd4dd1e2dcb // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/grafana/regexp v0.0.0-20250905093917-f7b3be9d1853 // indirect
	github.com/hashicorp/golang-lru v1.0.2 // indirect
	github.com/ipfs/bbloom v0.0.4 // indirect
	github.com/ipfs/go-blockservice v0.5.2 // indirect
	github.com/ipfs/go-datastore v0.6.0 // indirect
	github.com/ipfs/go-ipfs-blockstore v1.3.1 // indirect
	github.com/ipfs/go-ipfs-ds-help v1.1.1 // indirect
	github.com/ipfs/go-ipfs-exchange-interface v0.2.1 // indirect
	github.com/ipfs/go-ipld-legacy v0.2.1 // indirect
	github.com/ipfs/go-log v1.0.5 // indirect
	github.com/ipfs/go-log/v2 v2.5.1 // indirect
	github.com/ipfs/go-merkledag v0.11.0 // indirect
	github.com/ipfs/go-metrics-interface v0.0.1 // indirect
	github.com/ipfs/go-verifcid v0.0.3 // indirect
	github.com/ipld/go-codec-dagpb v1.6.0 // indirect
	github.com/ipld/go-ipld-prime v0.21.0 // indirect
	github.com/jackc/pgerrcode v0.0.0-20220416144525-469b46aa5efa // indirect
	github.com/jbenet/goprocess v0.1.4 // indirect
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/klauspost/crc32 v1.3.0 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/minio/crc64nvme v1.1.1 // indirect
	github.com/minio/md5-simd v1.1.2 // indirect
	github.com/opentracing/opentracing-go v1.2.0 // indirect
	github.com/pbnjay/memory v0.0.0-20210728143218-7b4eea64cf58 // indirect
	github.com/philhofer/fwd v1.2.0 // indirect
	github.com/rs/xid v1.6.0 // indirect
	github.com/tinylib/msgp v1.6.4 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.70.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.1 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/grpc v1.83.2 // indirect
	gopkg.in/ini.v1 v1.67.3 // indirect
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/earthboundkid/versioninfo/v2 v2.24.1 // indirect
	github.com/golang-jwt/jwt/v4 v4.5.2 // indirect
	github.com/ipfs/go-block-format v0.2.0 // indirect
	github.com/ipfs/go-cid v0.4.1 // mlsd-dev: CIDs of records; kept by: IPFS; instead: 60 lines
	github.com/ipfs/go-ipfs-util v0.0.3 // indirect
	github.com/ipfs/go-ipld-cbor v0.1.0 // indirect
	github.com/ipfs/go-ipld-format v0.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/labstack/gommon v0.5.0 // indirect
	github.com/mattn/go-colorable v0.1.15 // indirect
	github.com/mattn/go-isatty v0.0.22 // indirect
	github.com/minio/sha256-simd v1.0.1 // indirect
	github.com/multiformats/go-base32 v0.1.0 // indirect
	github.com/multiformats/go-base36 v0.2.0 // indirect
	github.com/multiformats/go-multibase v0.2.0 // indirect
	github.com/multiformats/go-multihash v0.2.3 // indirect
	github.com/multiformats/go-varint v0.0.7 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/polydawn/refmt v0.89.1-0.20221221234430-40501e09de1f // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // tests: the text format of metrics; kept by: Prometheus; instead: part of `client_golang`
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/spaolacci/murmur3 v1.1.0 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasttemplate v1.2.2 // indirect
	github.com/whyrusleeping/cbor-gen v0.2.1-0.20241030202151-b7a6831be65e // indirect
	github.com/xi2/xz v0.0.0-20171230120015-48954b6210f8 // the xz file of the downloaded PostgreSQL; kept by: one person, unchanged since 2017; instead: `github.com/ulikunitz/xz`, nine times as slow
	gitlab.com/yawning/secp256k1-voi v0.0.0-20230925100816-f2616030848b // K-256 signatures in constant time; kept by: one person; instead: `btcec`
	gitlab.com/yawning/tuplehash v0.0.0-20230713102510-df83abbf9a02 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // tests: alert rules, the guide's workflow; kept by: YAML organization; instead: JSON rules
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/xerrors v0.0.0-20231012003039-104605ab7028 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	lukechampine.com/blake3 v1.2.1 // indirect
)
