#!/usr/bin/env bash
# Lints the chart, renders it with few and with all values, and holds the results against the
# schemas of Kubernetes and of the Prometheus operator.
set -euo pipefail
. deploy/check/lib.sh

what="the Helm chart"
kubernetes=1.37.0 helm_version=v3.22.0 kubeconform_version=v0.8.0 operator_version=v0.85.0
chart=deploy/helm/mlsd

# go_tool VERSION PACKAGE installs a program, once.
go_tool() {
	local program=$CACHE/${2##*/}-$1
	if [[ ! -e $program ]]; then
		GOBIN=$WORK/bin go install "$2@$1" >/dev/null 2>&1 || skip "$what" "${2##*/} cannot be built"
		mv "$WORK/bin/${2##*/}" "$program"
	fi
	installed=$program
}
go_tool $helm_version helm.sh/helm/v3/cmd/helm
helm=$installed
go_tool $kubeconform_version github.com/yannh/kubeconform/cmd/kubeconform
kubeconform=$installed

schemas=$CACHE/schemas-$kubernetes-$operator_version
if [[ ! -e $schemas ]]; then
	bin=$(python) || skip "$what" "Python's packages cannot be had"
	operator=$(go mod download -json "github.com/prometheus-operator/prometheus-operator@$operator_version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	[[ -n $operator ]] || skip "$what" "the definition of ServiceMonitor cannot be had"
	"$bin/python" deploy/check/schemas.py $kubernetes \
		"$operator/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" "$WORK/schemas"
	mv "$WORK/schemas" "$schemas"
fi

render() { "$helm" template "$1" "$chart" --kube-version $kubernetes --values "$2"; }
conforms() { "$kubeconform" -strict -summary -schema-location "$schemas/{{.ResourceKind}}{{.KindSuffix}}.json" "$1"; }
for values in deploy/check/values-least.yaml deploy/check/values-all.yaml; do
	"$helm" lint --strict --kube-version $kubernetes --values "$values" "$chart" | tail -n 1
	render chat "$values" >"$WORK/rendered.yaml"
	conforms "$WORK/rendered.yaml" || fail "the chart with $values"
	for kind in Deployment Job PodDisruptionBudget Service; do
		grep -q "^kind: $kind$" "$WORK/rendered.yaml" || fail "the chart with $values has no $kind"
	done
	# The pods' rights, twice: of the nodes and of the migration.
	for right in 'runAsNonRoot: true' 'readOnlyRootFilesystem: true' 'allowPrivilegeEscalation: false' \
		'capabilities: {drop: \[ALL\]}' 'seccompProfile: {type: RuntimeDefault}' 'automountServiceAccountToken: false'; do
		[[ $(grep -c "$right" "$WORK/rendered.yaml") == 2 ]] || fail "not both pods have $right"
	done
done
for kind in Ingress NetworkPolicy ServiceMonitor; do
	grep -q "^kind: $kind$" "$WORK/rendered.yaml" || fail "the chart with all values has no $kind"
done

# Prometheus gets the token for metrics, and no other.
sed -n '/^kind: ServiceMonitor$/,/^---/p' "$WORK/rendered.yaml" | grep -q '^ *key: metrics-token$' || fail "Prometheus gets another token"

# mlsd knows every setting, and starts with them but for what a cluster has.
sed -n 's/.*name: \(MLSD_[A-Z_]*\).*/\1/p' "$WORK/rendered.yaml" | sort -u | while read -r setting; do
	grep -q "^| \`$setting\`" docs/SETTINGS.md || fail "the chart sets $setting, which does not exist"
done

# What is wrong is noticed: by the values' schema, and by Kubernetes'.
for wrong in serviceDID=example.com replicas=0 replica=2 settings.MLSD_DATABASE_URL=x settings.LANG=C trustedProxies={everybody} \
	admin.metricsTokenKey=; do
	if "$helm" template chat "$chart" --kube-version $kubernetes --values deploy/check/values-all.yaml --set "$wrong" >/dev/null 2>&1; then
		fail "the chart takes --set $wrong"
	fi
done
for mistake in 's/readinessProbe/readynessProbe/' 's/maxUnavailable: 1/maxUnavailabel: 1/' 's/    - port: admin/    - prot: admin/'; do
	sed "$mistake" "$WORK/rendered.yaml" >"$WORK/wrong.yaml"
	if cmp -s "$WORK/rendered.yaml" "$WORK/wrong.yaml"; then fail "nothing to change for $mistake"; fi
	if conforms "$WORK/wrong.yaml" >/dev/null 2>&1; then fail "kubeconform does not notice $mistake"; fi
done
echo "chart: seven wrong values and three wrong fields were refused"
