# The steps that need root at the centre. Read this file, then run: sudo sh $folder/install.sh
set -e
id dpfact-centre >/dev/null 2>&1 || \
  useradd --system --shell /usr/sbin/nologin dpfact-centre
chmod 755 $folder
chmod 644 $folder/ca.crt $folder/server.pem
chown -R dpfact-centre $folder/flwr $folder/runs $folder/codes $folder/server.key
cp $folder/dpfact-centre.service /etc/systemd/system/
cp $folder/dpfact-proxy.conf /etc/nginx/conf.d/
systemctl daemon-reload
systemctl enable --now dpfact-centre
systemctl reload nginx
