{{- define "grpo-operator.labels" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "grpo-operator.selector" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Name of what is the cluster's, and not a namespace's: two installations share none. */}}
{{- define "grpo-operator.clusterName" -}}
grpo-operator:{{ .Release.Namespace }}
{{- end }}
