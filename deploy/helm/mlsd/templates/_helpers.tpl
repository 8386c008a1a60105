{{- define "mlsd.name" -}}
{{- ternary .Release.Name (printf "%s-mlsd" .Release.Name) (contains "mlsd" .Release.Name) | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "mlsd.selector" -}}
app.kubernetes.io/name: mlsd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mlsd.labels" -}}
{{ include "mlsd.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "mlsd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "mlsd.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "mlsd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "mlsd.databaseURL" -}}
- name: MLSD_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end }}
