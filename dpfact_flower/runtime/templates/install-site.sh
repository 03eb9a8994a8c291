# The steps that need root at a hospital. Read this file, then run: sudo sh $folder/install.sh
set -e
id dpfact-node >/dev/null 2>&1 || useradd --system dpfact-node
id dpfact-site >/dev/null 2>&1 || useradd --system dpfact-site
chmod 755 $folder
chown -R dpfact-node $folder/node
chown -R dpfact-site $folder/site
cp $folder/dpfact-node.service $folder/dpfact-site.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now dpfact-node dpfact-site
